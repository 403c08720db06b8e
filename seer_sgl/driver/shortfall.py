"""Detects a lost reply: an engine runs fewer requests than the driver has in flight there.

SGLang's counts of running and waiting requests omit some: a request whose input or reply is in
transit, or whose prompt is being prefilled. So only quiet polls count: since the previous poll no
request was sent, returned or prefilled, while the engine continued to decode.
"""

from seer_sgl.engine_types import EngineLoad
from seer_sgl.scheduling.placement import EngineSlot

QUIET_POLLS = 10  # of a small fleet, 5 s: longer than a reply is in transit


class Shortfall:
    """The lost-reply detector of one engine.

    Requests of other clients make the engine's count larger, never smaller. `quiet_s`: how long
    the polls must be quiet.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._counters: tuple[int, int, int] | None = None  # equal at two quiet polls
        self._load: EngineLoad | None = None
        self._at = 0.0  # the time of the last poll
        self._for_s = 0.0  # how long the polls have been quiet

    def seen(self, now: float, slot: EngineSlot, load: EngineLoad) -> bool:
        """Returns whether the engine lacked a chunk for `quiet_s` of consecutive quiet polls."""
        counters = (slot.started, slot.completed, load.prefilled_tokens)
        short = load.requests is not None and load.requests < slot.inflight
        if not short or counters != self._counters:
            self._for_s = 0.0
        elif self._load is not None and load.progress != self._load.progress:
            self._for_s += now - self._at
        self._counters, self._load, self._at = counters, load, now
        return self._for_s >= self._quiet_s
