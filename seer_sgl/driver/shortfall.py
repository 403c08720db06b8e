"""Whether an engine runs fewer requests than it was sent: the reply of one was lost on the way.

SGLang counts requests as running or waiting, but not those whose input is on its way, is being
prefilled, or whose reply is. So only quiet looks count: nothing was sent, returned or prefilled
since the look before, while the engine went on decoding.
"""

from typing import NamedTuple

from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.types import EngineLoad

QUIET_LOOKS = 10  # in a row, 5 s: longer than a reply travels


class _Quiet(NamedTuple):
    """What stays the same from one quiet look to the next."""

    started: int
    completed: int
    prefilled_tokens: int


class Shortfall:
    """Watches one engine. Requests of others make the engine's count larger, never smaller."""

    def __init__(self) -> None:
        self._quiet: _Quiet | None = None
        self._load: EngineLoad | None = None
        self._looks = 0

    def seen(self, slot: EngineSlot, load: EngineLoad) -> bool:
        """Whether the engine has lacked a chunk in flight for QUIET_LOOKS quiet looks in a row."""
        quiet = _Quiet(slot.started, slot.completed, load.prefilled_tokens)
        short = load.requests is not None and load.requests < slot.inflight
        if not short or quiet != self._quiet:
            self._looks = 0
        elif self._load is not None and load.progress != self._load.progress:
            self._looks += 1
        self._quiet, self._load = quiet, load
        return self._looks >= QUIET_LOOKS
