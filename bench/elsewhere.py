"""A placement for experiments: every chunk moves."""

from seer_sgl.scheduling.attempts import Attempts
from seer_sgl.scheduling.engine_index import EngineIndex
from seer_sgl.scheduling.placement import Placed, Wait
from seer_sgl.types import Move


class AlwaysElsewhere:
    """Chooses another engine than the one that ran the request's last chunk.

    `fetch`: waits until the request's KV is in the pool or will not be stored. `alone`: takes the
    same engine again if no other engine is available.
    """

    def __init__(self, fetch: bool = False, alone: bool = False) -> None:
        self._fetch = fetch
        self._alone = alone

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        request, stored = attempts.request, attempts.stored
        last = request.engines[-1] if request.engines else None
        if self._fetch and last is not None and not stored and attempts.may_wait:
            return Wait.FOR_STORE
        up = [slot for slot in fleet if slot.available]
        others = [slot for slot in up if slot.engine_id != last] or (up if self._alone else [])
        able = [slot for slot in others if slot.admits(request, total_len)]
        if not able:
            return Wait.FOR_ROOM
        moved = Move.FETCH if stored else Move.PREFILL
        return Placed(min(able, key=lambda slot: slot.inflight), moved if last else Move.STAY)
