"""Detects requests that stand in the queue of an engine with room, and do not wait for KV.

A KV ledger sends an engine no more chunks than fit. So its queue empties as fast as it prefills,
unless something else holds the requests up, which the engine does not report.
"""

from seer_sgl.engine_types import EngineLoad
from seer_sgl.scheduling.placement import EngineSlot


class QueueWatch:
    """The clock of one engine's queue. Pure; times are seconds of the monitor's polls.

    `standing_s`: a queue that stands for so long is reported.
    """

    def __init__(self, standing_s: float) -> None:
        self._standing_s = standing_s
        self._prefilled = -1  # tokens, at the last report
        self._since = 0.0  # the queue stands since then
        self._reported = False

    def standing(self, now: float, slot: EngineSlot, load: EngineLoad) -> int:
        """Returns the number of queued requests once the queue has stood long enough; else 0."""
        stands = load.queued > 0 and _has_room(slot, load)
        if not stands or load.prefilled_tokens != self._prefilled:
            self._since, self._reported = now, False
        self._prefilled = load.prefilled_tokens
        if self._reported or now - self._since < self._standing_s:
            return 0
        self._reported = True
        return load.queued


def _has_room(slot: EngineSlot, load: EngineLoad) -> bool:
    """Returns whether the engine surely has a slot and KV for each of its requests.

    Requests of other clients may take the room. KV that a write locks is not free.
    """
    if slot.ledger is None or load.requests is None or load.requests > slot.inflight:
        return False
    return 2 * load.used_tokens <= slot.ledger.capacity
