"""Watches the chunks that wait for KV in an engine's queue, and takes back those that wait too
long."""

import logging
from collections.abc import Sequence

from seer_sgl.engine_types import EngineLoad
from seer_sgl.errors import EngineError
from seer_sgl.scheduling.costs import Costs
from seer_sgl.timing import Timing
from seer_sgl.types import Chunk

from .engine import Engine
from .kv_waits import KvWaits
from .loop import RolloutLoop

logger = logging.getLogger(__name__)


class KvReads:
    """The reads of KV from the pool by one engine, as the driver sees them."""

    def __init__(self, engine_id: str, engine: Engine, timing: Timing) -> None:
        self._name = engine_id
        self._engine = engine
        self._waits = KvWaits(timing)

    async def check(self, now: float, load: EngineLoad, loop: RolloutLoop, costs: Costs) -> None:
        """Acts on a load report. `now`: seconds of the monitor's polls.

        A chunk that waits too long is sent again. The engine's next chunks read no KV for a while.
        """
        if self._waits.resumes(now):
            loop.scheduler.set_reads(self._name, True)
        waiting = await self._waiting(load, loop)
        if waiting is None:
            return
        most_s = self._waits.bound_s(waiting, costs.prefill_tok_s)
        late = self._waits.overdue(now, waiting, most_s)
        if noticed := self._waits.notice(now):
            logger.warning(
                "engine %s has room, and requests in its queue wait for KV from the pool: %d now; "
                "after %.0f s they are sent again",
                self._name,
                noticed,
                most_s,
            )
        if late:
            why = f"engine {self._name}: KV was not read from the pool within {most_s:.0f} s"
            logger.warning("%s; requests that are sent again: %d", why, len(late))
            loop.scheduler.set_reads(self._name, False)
            loop.take_back(late, why)

    async def _waiting(self, load: EngineLoad, loop: RolloutLoop) -> Sequence[Chunk] | None:
        """Returns the chunks that wait for KV; None if the engine does not name them."""
        if not load.kv_waiting:
            return ()
        try:
            rids = set(await self._engine.waiting())
        except EngineError:  # the next poll has the reason
            return None
        chunks = (flight.chunk for flight in loop.flights.on(self._name))
        return [chunk for chunk in chunks if chunk.rid in rids]
