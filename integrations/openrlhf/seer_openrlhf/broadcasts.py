"""A weight update through a process group: begin, the buckets, end; on rank 0 of the trainer."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from .calls import (
    QUICK_S,
    SLACK_S,
    WHY_CHARACTERS,
    Calls,
    Json,
    UpdateFailed,
    WeightError,
    ask,
    done,
    failures,
    logger,
)
from .calls import named as lines
from .failures import one_line
from .process_group import Group
from .weight_clock import BEGIN, END

JOIN, LEAVE = "/init_weights_update_group", "/destroy_weights_update_group"
UPDATE = "/update_weights_from_distributed"
JOIN_S = 120.0  # all engines have just answered, and only connect to one another
POLL_S = 0.05  # the server's answer ends the wait at once; a failed broadcast is seen by polling
Join = Callable[..., Group]
Bucket = Sequence[tuple[str, Any]]  # names and tensors


class BroadcastSender:
    """Sends weights to the engines that answer.

    A group that has other members than the engines of an update is made anew, also if the server
    has ended since, whose engines have the same names at its next start. `address`: returns
    this host and a free port. `join`: of process_group.Group.
    """

    def __init__(
        self,
        calls: Calls,
        backend: str,
        timeout_s: float,
        address: Callable[[], tuple[str, int]],
        join: Join = Group.join,
    ) -> None:
        self._calls = calls
        self._backend = backend
        self._timeout_s = timeout_s
        self._address = address
        self._join = join
        self._group: Group | None = None
        self._name = ""
        self._members: list[str] = []
        self._version = ""
        self._ends = 0  # of the server

    def begin(self, step: int) -> None:
        """Begins an update of all engines that answer. Raises WeightError if there is none.

        Raises UpdateFailed if they cannot join the group; then the update has ended.
        """
        self._version = str(step)
        answer = self._ask(BEGIN, QUICK_S)
        if not answer.get("success") and "engines" not in answer:
            # A trainer that ended in the middle of an update has left it open.
            self._ask(END, QUICK_S)
            answer = self._ask(BEGIN, QUICK_S)
        present, failed = done(answer), failures(answer)
        if not present:
            raise WeightError(f"no engine is left: {lines(failed) or answer.get('message')}")
        if failed:
            logger.warning("step %s: the update continues without %s", step, lines(failed))
        ended, self._ends = answer.get("ends", 0) != self._ends, answer.get("ends", 0)
        if self._group is None or present != self._members or ended:
            try:
                self._leave()
                self._make_group(present)
            except UpdateFailed:
                self._ask(END, QUICK_S)
                raise

    def send(self, bucket: Bucket) -> None:
        """Broadcasts one bucket while the engines receive it. Raises UpdateFailed.

        The error comes as soon as the server reports an engine that failed, or a broadcast fails.
        """
        if self._group is None:
            raise UpdateFailed("there is no process group")
        fields = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            "shapes": [list(tensor.shape) for _, tensor in bucket],
            "group_name": self._name,
            "weight_version": self._version,
        }
        reference = self._calls.start(UPDATE, fields, self._timeout_s)
        deadline = time.monotonic() + self._timeout_s + SLACK_S
        error, answer = None, None
        try:
            self._group.broadcast(tensor for _, tensor in bucket)
        except RuntimeError as failure:
            error = one_line(str(failure), WHY_CHARACTERS)
        while answer is None and error is None and time.monotonic() < deadline:
            answer = self._calls.answer(reference, POLL_S)
            error = self._group.error()
        if answer is None:  # without its group an engine stops waiting, and the server answers
            self._abandon()
            answer = self._calls.answer(reference, self._timeout_s + SLACK_S) or {}
        failed = failures(answer)
        if error is not None or failed or not answer.get("success"):
            self._abandon()
            raise UpdateFailed(lines(failed) or answer.get("message") or error or "no answer")
        try:
            self._group.wait()
        except RuntimeError as failure:
            self._abandon()
            raise UpdateFailed(one_line(str(failure), WHY_CHARACTERS)) from None

    def end(self, failure: UpdateFailed | WeightError | None) -> list[str]:
        """Ends the update, and returns the engines that have the weights.

        Raises `failure` after it, if a bucket failed, and UpdateFailed if no engine has ended it.
        """
        answer = self._ask(END, QUICK_S)
        if failure is not None:
            self._leave()
            raise failure
        failed, present = failures(answer), done(answer)
        if not present:
            self._leave()
            raise UpdateFailed(lines(failed) or str(answer.get("message")))
        if failed:
            logger.warning("step %s: not updated: %s", self._version, lines(failed))
        return present

    def _make_group(self, members: list[str]) -> None:
        ranks = {each["id"]: int(each["metadata"]["ranks"]) for each in self._calls.workers()}
        world_size = 1 + sum(ranks.get(name, 0) for name in members)
        self._name = f"openrlhf-{uuid.uuid4().hex}"
        try:
            host, port = self._address()
        except OSError as error:
            raise UpdateFailed(
                f"the process group was not made: {one_line(str(error), WHY_CHARACTERS)}"
            ) from None
        join_s = min(JOIN_S, self._timeout_s)
        fields = {
            "master_address": host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
            "group_name": self._name,
            "backend": self._backend,
        }
        reference = self._calls.start(JOIN, fields, join_s)
        try:
            self._group = self._join(
                self._name,
                self._backend,
                f"{host}:{port}",
                world_size=world_size,
                join_s=join_s,
                # NCCL ends the process at its timeout: ours comes first.
                timeout_s=self._timeout_s + (2 * SLACK_S if self._backend == "nccl" else 0),
            )
        except (RuntimeError, OSError) as error:
            answer = self._calls.answer(reference, join_s + SLACK_S) or {}
            why = lines(failures(answer)) or one_line(str(error), WHY_CHARACTERS)
            raise UpdateFailed(f"the process group was not made: {why}") from None
        self._members = members
        answer = self._calls.answer(reference, join_s + SLACK_S) or {}
        failed = failures(answer)
        if failed or not answer.get("success"):
            self._leave()
            why = lines(failed) or answer.get("message") or "no answer"
            raise UpdateFailed(f"the process group was not made: {why}")

    def _abandon(self) -> None:
        """Leaves the group here, which ends the engines' waiting."""
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _leave(self) -> None:
        """Leaves the group, and makes the engines leave it. Those that are gone have left."""
        self._abandon()
        if self._name:
            fields = {"group_name": self._name}
            ask(self._calls, LEAVE, fields, min(QUICK_S, self._timeout_s))
            self._name, self._members = "", []

    def _ask(self, path: str, engine_s: float) -> Json:
        return ask(self._calls, path, {}, min(engine_s, self._timeout_s))
