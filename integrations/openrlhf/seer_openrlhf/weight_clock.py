"""How long the last weight update took, and which weights the trainer sent."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from .calls import failures
from .figures import version_number

BEGIN, END = "/begin_weight_update", "/end_weight_update"
UPDATE = "/update_weights_from"  # the calls in between, one per bucket
clock = time.monotonic


class WeightClock:
    """The weights that the engines were sent, as seen from the calls of the control plane.

    `version`: of the trainer's newest weights; 0 before the first update. `sent`: of the newest
    ones that engines have as a whole; None before. `seconds`: from the first to the last call of
    the last update.
    """

    def __init__(self) -> None:
        self.version = 0
        self.sent: int | None = None
        self.seconds = 0.0
        self._began: float | None = None
        self._taken: int | None = None  # of the last bucket, unless an engine failed in it

    @contextlib.contextmanager
    def during(self, path: str, weight_version: str | None) -> Iterator[dict[str, Any]]:
        """Records a call of the control plane, which runs during the block.

        The block puts the server's answer into what it gets.
        """
        path, _, _ = path.partition("?")
        updates = path in (BEGIN, END) or path.startswith(UPDATE)
        alone = updates and self._began is None and path != BEGIN
        if path == BEGIN or (updates and self._began is None):
            self._began, self._taken = clock(), None
        answer: dict[str, Any] = {}
        try:
            yield answer
        except BaseException:
            self._began = None  # the server is lost; the trainer begins again
            raise
        if not updates or self._began is None:
            return
        if weight_version is not None:
            self.version = version_number(weight_version)
            # The trainer sends the weights again if an engine has failed in a bucket.
            taken = answer.get("success") and (alone or not failures(answer))
            self._taken = self.version if taken else None
        self.seconds = clock() - self._began
        if alone or path == END:
            self._began = None
            if self._taken is not None and answer.get("success"):
                self.sent = self._taken
