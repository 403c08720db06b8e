"""One engine as the monitor sees it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from seer_sgl.engine_types import EngineLoad, ServerPhase
from seer_sgl.errors import EngineError
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.timing import Timing
from seer_sgl.types import Chunk

from .engine import Engine
from .health import Health, State
from .kv_waits import KvWaits
from .loop import RolloutLoop
from .queue_watch import QueueWatch
from .shortfall import QUIET_POLLS, Shortfall
from .stall import HUNG_AFTER, Readmission, StallClock

logger = logging.getLogger(__name__)


class EngineWatch:
    """One engine, and what the monitor remembers of it."""

    def __init__(
        self, slot: EngineSlot, engine: Engine, stall_timeout_s: float, timing: Timing
    ) -> None:
        self.slot = slot
        self.engine = engine
        self.health = Health()
        self.stall = StallClock(stall_timeout_s)
        self._hung = StallClock(HUNG_AFTER * stall_timeout_s)
        self.readmission = Readmission(timing.poll_s, timing.readmission_most_s)
        self.shortfall = Shortfall(QUIET_POLLS * timing.poll_s)
        self._kv_waits = KvWaits(timing)
        self._queue = QueueWatch(timing.queue_standing_s)
        self.progress: tuple[Any, ...] | None = None  # None while the engine does not answer
        self.seen: tuple[Any, ...] = ()  # its last progress: no answer is no progress
        self.failing = ""  # why its last poll failed
        self.version = engine.info.weight_version
        self.task: asyncio.Task[None] | None = None
        self.broken = False  # it needs a restart
        self._starts = engine.server.starts
        self._restored: tuple[int, str | None] | None = None  # start and weights of the last try
        self._logged = False  # that it is out
        self._replaced = False  # another server answers, and has not served yet

    @property
    def name(self) -> str:
        return self.slot.engine_id

    def follow(self) -> None:
        """Takes over what the fleet and the loop know of the engine."""
        health, server = self.health, self.engine.server
        if self.slot.leaving:
            health.drain()
        elif server.phase is ServerPhase.QUARANTINED:
            health.quarantined(server.why)
        elif server.phase is ServerPhase.ENDED:
            health.died(server.why)
        elif server.phase is ServerPhase.STARTING or server.starts != self._starts:
            health.started(server.why)
        elif health.serves and not self.slot.available:
            health.failed(self.slot.trouble)
        self._starts = server.starts

    def watch_queue(self, now: float, load: EngineLoad) -> None:
        """Logs that requests stand in the engine's queue although it has room."""
        if standing := self._queue.standing(now, self.slot, load):
            logger.warning(
                "engine %s has room, and requests stand in its queue for a reason that it does not "
                "report: %d",
                self.name,
                standing,
            )

    async def watch_reads(
        self, now: float, load: EngineLoad, loop: RolloutLoop, costs: Costs
    ) -> None:
        """Sends the chunks again that wait too long for KV from the pool.

        The engine's next chunks read no KV for a while. `now`: seconds of the monitor's polls.
        """
        if self._kv_waits.resumes(now):
            loop.scheduler.set_reads(self.name, True)
        waiting = await self._waiting_for_kv(load, loop)
        if waiting is None:
            return
        most_s = self._kv_waits.bound_s(waiting, costs.prefill_tok_s)
        late = self._kv_waits.overdue(now, waiting, most_s)
        if noticed := self._kv_waits.notice(now):
            logger.warning(
                "engine %s has room, and requests in its queue wait for KV from the pool: %d now; "
                "after %.0f s they are sent again",
                self.name,
                noticed,
                most_s,
            )
        if late:
            why = f"engine {self.name}: KV was not read from the pool within {most_s:.0f} s"
            logger.warning("%s; requests that are sent again: %d", why, len(late))
            loop.scheduler.set_reads(self.name, False)
            loop.take_back(late, why)

    async def _waiting_for_kv(self, load: EngineLoad, loop: RolloutLoop) -> Sequence[Chunk] | None:
        """Returns the chunks that wait for KV; None if the engine does not name them."""
        if not load.kv_waiting:
            return ()
        try:
            rids = set(await self.engine.waiting())
        except EngineError:  # the next poll has the reason
            return None
        chunks = (flight.chunk for flight in loop.flights.on(self.name))
        return [chunk for chunk in chunks if chunk.rid in rids]

    def end_if_hung(self, now: float) -> None:
        """Has the server of an engine that is out for too long, and has not ended, restarted.

        `now`: seconds without pauses, in which no engine can show that it works. A stale engine
        that answers waits for an update.
        """
        stale = self.health.state is State.STALE
        out = self.health.state is State.SUSPECT or (stale and bool(self.failing))
        if self._hung.stalled(now, int(out), ()):
            self.engine.end_server(f"it hung: {self.failing or self.health.why}")

    def end_if_broken(self, paused: bool) -> None:
        """Has the server of a broken engine restarted once its last chunk has ended."""
        # Until another server answers. An update may have made it STALE meanwhile.
        self.broken &= self.health.state in (State.SUSPECT, State.STALE)
        if self.broken and not self.slot.inflight and not paused:
            self.broken = False
            self.engine.end_server(self.health.why)

    def started_elsewhere(self, why: str) -> None:
        """Records that another server answers, once until it serves."""
        if not self._replaced:
            self._replaced = True
            self.health.started(why)

    async def restore(self, peer: Engine | None) -> bool | None:
        """Returns whether an engine that the fleet has restarted was given the current weights;
        None: that was not tried.

        They are loaded from where `peer`, an engine that serves, has them from; without one, from
        where the engine had them from before, if it has missed no update. Each start and each
        update is tried once.
        """
        starts, current = self.engine.server.starts, self.engine.info
        if not starts or (peer is None and self.health.lacks is not None):
            return None
        if peer is not None:
            try:
                current = await peer.refresh()
            except EngineError:
                return None
        if self._restored == (starts, current.weights):
            return None
        self._restored = starts, current.weights
        problem = await self.engine.restore(current)
        if problem is None:
            logger.info("engine %s has loaded weights %s", self.name, current.weight_version)
        else:
            logger.warning("engine %s waits for a weight update: %s", self.name, problem)
        return problem is None

    def restore_again(self) -> None:
        """Forgets the last try of `restore`: what it has loaded is not known."""
        self._restored = None

    def log(self, state: State) -> None:
        """Logs that the engine is out, once, and that it is back."""
        health = self.health
        if state is State.HEALTHY:
            self._logged = self._replaced = False
            logger.info("engine %s serves again", self.name)
        # What lacks a weight update was logged with the update, and a start by the fleet.
        known = state in (State.STARTING, State.DRAINING) or health.why in ("", health.lacks)
        if state is not State.HEALTHY and not known and not self._logged:
            self._logged = True
            logger.warning("engine %s is out of service: %s", self.name, health.why)
