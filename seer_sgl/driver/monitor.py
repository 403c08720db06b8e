"""Polls the engines: detects load, stuck engines and engines that came back.

Generation has no read timeout. An engine counts as stuck if it has chunks in flight and no figure
of its `/v1/loads` changes for `stall_timeout_s`.

Time is counted in polls, not by the clock. After a driver itself was stopped (SIGSTOP, a paused
virtual machine), the clock would show a long silence of healthy engines.
"""

import asyncio
import logging

from seer_sgl.engine_types import EngineProblem, ServerPhase
from seer_sgl.errors import EngineBroken, EngineError, EngineRestarted, RolloutError
from seer_sgl.scheduling.placement import EngineSlot

from .engine import Engine
from .engine_watch import EngineWatch
from .health import Health, State
from .loop import RolloutLoop
from .settings import Settings

logger = logging.getLogger(__name__)


class Monitor:
    """Polls every engine every `timing.poll_s`, in a large fleet less often."""

    def __init__(self, loop: RolloutLoop, settings: Settings) -> None:
        self._watched: dict[str, EngineWatch] = {}  # by engine id
        self._tasks: asyncio.TaskGroup | None = None  # while it runs
        self._loop = loop
        self._settings = settings
        self._timing = settings.timing
        self._poll_s = settings.timing.poll_s
        self._awake_s = 0.0  # seconds since the start, counted in polls
        self._unpaused_s = 0.0  # of them
        self._alive_at = 0.0  # when an engine last served, on the same scale
        self._available: set[EngineSlot] = set()  # at the last poll
        self._served = 0  # chunks that had returned tokens at the last poll
        self._why = ""  # the newest reason why an engine is out
        # The version that an engine must serve to come back; None: any.
        self.weight_version: str | None = None
        # By engine id: the start of the server that has the newest weights, if no version names
        # them. A server that was restarted has other weights of the same version.
        self.version_unknown: dict[str, str | None] = {}
        self.updates = 0  # weight updates so far
        self._mixed_s = 0.0  # how long they have served different ones

    @property
    def stale(self) -> dict[str, str]:
        """The engines that may not come back before the next weight update: why, by id."""
        lacking = (
            (name, watched.health.lacks or self._restarted(watched.engine))
            for name, watched in self._watched.items()
        )
        return {name: why for name, why in lacking if why is not None}

    def health(self, engine_id: str) -> Health:
        return self._watched[engine_id].health

    def add(self, slot: EngineSlot, engine: Engine) -> None:
        watched = self._watched[slot.engine_id] = EngineWatch(
            slot, engine, self._settings.engines.stall_timeout_s, self._timing
        )
        watched.follow()
        if not watched.health.serves:  # its server was not started yet
            self._loop.set_available(slot.engine_id, False)
            self._publish(watched)
        if slot.available:
            self._available.add(slot)
        if self._tasks is not None:
            watched.task = self._tasks.create_task(self._watch(watched))

    def remove(self, engine_id: str) -> None:
        watched = self._watched.pop(engine_id, None)
        self.version_unknown.pop(engine_id, None)
        if watched is not None:
            self._served -= watched.slot.served
            if watched.task is not None:
                watched.task.cancel()

    def mark_stale(self, engine_id: str, why: str) -> None:
        """Takes an engine out until `clear_stale`: it does not have the current weights."""
        watched = self._watched[engine_id]
        watched.health.missed(why)
        self._loop.set_available(engine_id, False)
        self._publish(watched)

    def clear_stale(self, engine_id: str) -> None:
        """Lets an engine come back that was stale, once it has passed its check."""
        self.version_unknown.pop(engine_id, None)
        if engine_id in self._watched:
            self._watched[engine_id].health.has_weights()

    async def run(self) -> None:
        """Polls until cancelled. Raises RolloutError if no engine serves for too long."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._count())
            for number, watched in enumerate(self._watched.values()):
                # All at once they would keep the loop from other work.
                after_s = self._pause_s * number / len(self._watched)
                watched.task = tasks.create_task(self._watch(watched, after_s))

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            self._awake_s += self._poll_s
            self._unpaused_s += 0.0 if self._loop.paused else self._poll_s
            self._loop.scheduler.elapsed(self._poll_s)
            for watched in self._watched.values():
                watched.end_if_broken(self._loop.paused)
                watched.end_if_hung(self._unpaused_s)
            self._follow_weights()
            self._report_mixed()
            self._require_serving()

    @property
    def _pause_s(self) -> float:
        """Seconds between two polls of one engine."""
        return max(self._poll_s, len(self._watched) / self._timing.most_polls_per_s)

    async def _watch(self, watched: EngineWatch, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        while True:
            await asyncio.sleep(self._pause_s)
            watched.follow()
            if watched.slot.available and not watched.health.serves:
                self._loop.set_available(watched.name, False)
            await self._poll(watched)
            self._publish(watched)

    async def _poll(self, watched: EngineWatch) -> None:
        slot, engine, health = watched.slot, watched.engine, watched.health
        before, watched.progress = watched.progress, None
        try:
            load = await engine.load()
        except EngineError as error:
            watched.failing = str(error)
            self._failed(watched, error)
        else:
            watched.failing = ""
            self._loop.loaded(slot.engine_id, load)
            watched.progress = watched.seen = load.progress
            if engine.info.weight_version != watched.version:
                watched.version = engine.info.weight_version
                self._loop.weights_changed(slot.engine_id, watched.version)
            if watched.shortfall.seen(self._awake_s, slot, load):
                self._loop.resend_lost(slot.engine_id)
            watched.watch_queue(self._awake_s, load)
            await watched.watch_reads(self._awake_s, load, self._loop, self._settings.costs)
        progress = watched.progress
        if slot.inflight and before != progress and None not in (before, progress):
            self._alive_at = self._awake_s  # it may be out, but its chunks make progress
        mark = (slot.completed, *watched.seen)
        working = 0 if self._loop.idle else slot.inflight  # a paused engine does not work
        if watched.stall.stalled(self._awake_s, working, mark):
            stalled_s = self._settings.engines.stall_timeout_s
            self._why = f"engine {slot.engine_id}: no progress for {stalled_s:g} s"
            health.failed(self._why)
            self._loop.set_available(slot.engine_id, False)
            self._loop.interrupt(slot.engine_id, self._why)
        elif progress is not None and not slot.available:
            await self._readmit(watched)

    def _failed(self, watched: EngineWatch, error: EngineError) -> None:
        """Records that the engine does not answer a poll as it should."""
        slot, health = watched.slot, watched.health
        expected = watched.engine.server.phase is ServerPhase.RUNNING
        if expected:
            self._why = str(error)
        if isinstance(error, EngineRestarted):
            watched.started_elsewhere(str(error))
        elif expected:
            health.failed(str(error))
            watched.broken |= isinstance(error, EngineBroken)
        if slot.available:
            self._loop.set_available(slot.engine_id, False)

    async def _readmit(self, watched: EngineWatch) -> None:
        """Checks an engine that is out and answers, and lets it serve if nothing is wrong."""
        slot, engine, health = watched.slot, watched.engine, watched.health
        if health.state in (State.DRAINING, State.QUARANTINED):
            return
        if engine.server.phase is not ServerPhase.RUNNING:  # it is not ready yet
            return
        self._why = slot.trouble or self._why
        # A health check generates a token: a paused engine would not answer, and an engine without
        # its memory would fail.
        if self._loop.paused or not watched.readmission.due(self._awake_s, slot.trouble):
            return
        instance = engine.info.instance
        problem = await self._problem(watched)
        if engine.info.instance != instance:
            watched.started_elsewhere("it was restarted")
            self._publish(watched)
        if problem is not None and problem.weights:
            problem = await self._restored(watched, problem)
        if slot.leaving:
            return
        if health.state is State.DEAD:
            health.started("it answers again")
        if problem is None and health.lacks is not None:  # it has just missed an update
            problem = EngineProblem(health.lacks, weights=True)
        if problem is None:
            watched.readmission.tried(self._awake_s)
            health.answered(None)
            self._loop.set_available(slot.engine_id, True)
        else:
            self._why = problem.why
            health.answered(problem)

    async def _restored(self, watched: EngineWatch, problem: EngineProblem) -> EngineProblem | None:
        """Tries to give an engine the current weights. Returns why it cannot serve then.

        If the weights were updated meanwhile, it may have loaded the older ones after the update,
        although it has confirmed the update to the trainer.
        """
        updates = self.updates
        serving = (other.engine for other in self._watched.values() if other.health.serves)
        restored = await watched.restore(next(serving, None))
        if restored is None:
            return problem
        # Polled like all else here: an update that has begun ends before its pause does.
        while self._loop.paused:  # noqa: ASYNC110
            await asyncio.sleep(self._poll_s)
        if self.updates != updates:
            watched.restore_again()
            watched.health.missed("its weights were loaded during an update")
            return await self._problem(watched)
        if not restored:
            return problem
        self.clear_stale(watched.name)
        return await self._problem(watched)

    async def _problem(self, watched: EngineWatch) -> EngineProblem | None:
        if watched.health.lacks is not None:
            return EngineProblem(watched.health.lacks, weights=True)
        problem = await watched.engine.problem(self.weight_version)
        return problem or self._other_weights(watched.engine)

    def _publish(self, watched: EngineWatch) -> None:
        state = watched.health.change()
        if state is None:
            return
        if state in (State.DEAD, State.QUARANTINED):
            self._why = f"engine {watched.name}: {watched.health.why}"
        watched.log(state)
        self._loop.health_changed(watched.name, state, watched.health.why)

    def _other_weights(self, engine: Engine) -> EngineProblem | None:
        name, version = engine.info.engine_id, engine.info.weight_version
        why = self._restarted(engine)
        if why is None and self.weight_version not in (None, version):
            why = f"engine {name}: it serves weights {version}, not {self.weight_version}"
        return None if why is None else EngineProblem(why, weights=True)

    def _restarted(self, engine: Engine) -> str | None:
        name, instance = engine.info.engine_id, engine.info.instance
        if self.version_unknown.get(name, instance) == instance:
            return None
        return f"engine {name}: it was restarted after a weight update that had no version"

    def _follow_weights(self) -> None:
        """Takes over a version that all serving engines report: a trainer has updated them itself.

        Otherwise an engine that fails for a moment could not come back.
        """
        if self.weight_version is None or self._loop.paused:
            return
        serving = (watched for watched in self._watched.values() if watched.slot.available)
        versions = {watched.engine.info.weight_version for watched in serving}
        if len(versions) == 1:
            (self.weight_version,) = versions

    def _report_mixed(self) -> None:
        """Logs an error if engines have served different versions for too long, once until they
        serve one again. None of them is taken out: it is not known which of them is right."""
        serving = [watched for watched in self._watched.values() if watched.slot.available]
        versions = {watched.name: watched.engine.info.weight_version for watched in serving}
        if self._loop.paused or len(set(versions.values())) < 2:
            self._mixed_s = 0.0
            return
        self._mixed_s += self._poll_s
        if self._mixed_s - self._poll_s < self._timing.mixed_weights_s <= self._mixed_s:
            listed = ", ".join(f"{name} {version}" for name, version in versions.items())
            logger.error("engines serve different weights without an update: %s", listed)

    def _require_serving(self) -> None:
        """Raises RolloutError if no engine has served for too long.

        An engine serves if a chunk returns tokens, or if it stays available from one poll to the
        next. An engine that fails its first chunk after each try does not serve.

        The timeout includes the longest pause between two tries. So a request that fails on every
        engine is given up first. The monitor waits for an engine that the fleet is restarting.
        """
        slots = [watched.slot for watched in self._watched.values()]
        available = {slot for slot in slots if slot.available}
        served = sum(slot.served for slot in slots)
        serves = served > self._served or available & self._available or self._returning
        self._available, self._served = available, served
        recovery_s = self._settings.engines.recovery_timeout_s
        patience_s = recovery_s + min(recovery_s, self._timing.readmission_most_s)
        if self._loop.idle or serves or not self._settings.gives_up:
            self._alive_at = self._awake_s
        elif self._awake_s - self._alive_at >= patience_s:
            raise RolloutError(
                f"no engine has served for {recovery_s:g} s"
                + (f"; last error: {self._why}" if self._why else "")
            )

    @property
    def _returning(self) -> bool:
        """Whether the fleet is restarting an engine."""
        phases = {watched.engine.server.phase for watched in self._watched.values()}
        return bool(phases & {ServerPhase.ENDED, ServerPhase.STARTING})
