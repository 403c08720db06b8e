"""The asyncio loop: sends the chunks the scheduler assigns, and returns the engines' replies to it.

The loop decides nothing. The chunks in flight are tasks of their own (flights.py); all other work
happens between two awaits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import override

from seer_sgl.engine_types import EngineLoad
from seer_sgl.errors import (
    ChunkInterrupted,
    ChunkRecalled,
    EngineStalled,
    EngineUnavailable,
    RolloutError,
)
from seer_sgl.scheduling.engine_index import EngineSlot
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.timing import Timing
from seer_sgl.types import Chunk, RequestState

from .engine import Engine
from .engine_control import EngineControl
from .flights import Clock, Flight, Flights
from .health import State
from .open_runs import OpenRuns
from .stop_strings import Amend

logger = logging.getLogger(__name__)


class RolloutLoop(EngineControl):
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it is recorded (stop strings across chunks). `clock`:
    seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, amend: Amend, timing: Timing) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._settle_s = timing.settle_s
        self.engines: dict[str, Engine] = {}  # by id
        self._ended: asyncio.Queue[Flight | None] = asyncio.Queue()  # None: a wake-up
        self._flights = Flights(self.engines, clock, amend, self._ended.put_nowait, timing.recall_s)
        self.runs = OpenRuns(scheduler, self._flights, clock, self._wake)
        self._pauses = 0  # pauses without a resume yet
        self._error: RolloutError | None = None  # the reason why the driver ended

    def add_engine(self, slot: EngineSlot, engine: Engine) -> None:
        """Adds an engine. Raises ValueError if its id is already in use."""
        self._scheduler.add_engine(slot)
        self.engines[slot.engine_id] = engine
        for observer in self.runs.observers:
            observer.joined(engine.info, self._clock())
        self._wake()

    async def remove_engine(self, engine_id: str) -> None:
        """Removes an engine once its chunks are back.

        Divided chunks end early with the tokens they have; the others run to their end. Raises
        KeyError for an unknown engine.
        """
        self._scheduler.drain(engine_id)
        await self._until_landed(
            lambda chunk: chunk.engine_id == engine_id, f"engine {engine_id} leaves"
        )
        if engine_id not in self.engines:  # another caller has removed it
            return
        del self.engines[engine_id]
        self._scheduler.remove_engine(engine_id)
        for observer in self.runs.observers:
            observer.left(engine_id, self._clock())

    def available(self, engine_id: str) -> bool:
        """Returns whether chunks go to an engine."""
        return self._scheduler.available(engine_id)

    def flights_on(self, engine_id: str) -> Iterator[Flight]:
        """Yields the chunks in flight on an engine."""
        return self._flights.on(engine_id)

    def fail(self, error: RolloutError) -> None:
        """Ends every run with an error, so that no caller waits for ever."""
        self._error = error
        self._flights.abandon()
        self.runs.fail(error)

    @property
    @override
    def idle(self) -> bool:
        return not self.runs.by_group or self.paused

    @property
    @override
    def paused(self) -> bool:
        return self._pauses > 0

    @property
    def stands_still(self) -> bool:
        """Whether callers wait although no chunk is in flight and no retry is due."""
        return bool(self.runs.by_group) and not self._flights and self._scheduler.wake_at is None

    def check(self) -> list[str]:
        """Returns the broken invariants of an idle loop: chunks, groups and scheduler state that
        are left over. Empty if all invariants hold."""
        breaches = self._scheduler.check()
        if self._flights:
            breaches.append(f"{len(self._flights)} chunks are in flight")
        if self.runs.by_group:
            breaches.append(f"{len(self.runs.by_group)} groups are unfinished")
        return breaches

    async def pause(self) -> None:
        """Stops dispatching, and returns when no chunk is in flight, except passthrough chunks.

        Divided chunks end early with the tokens they have; others begin again after `resume`.
        Raises RolloutError if the driver ends meanwhile.
        """
        self._pauses += 1
        await self._until_landed(
            lambda chunk: chunk.request.passthrough is None, "the driver is paused", restart=True
        )

    def resume(self) -> None:
        """Ends one pause. The loop dispatches again after the last one."""
        self._pauses = max(0, self._pauses - 1)
        self._wake()

    async def settle(self) -> None:
        """Gives up all runs. Waits until their chunks are aborted and their sessions closed, for
        `settle_s` at most."""
        self.runs.close_all()
        settling = {asyncio.create_task(engine.settle()) for engine in self.engines.values()}
        tasks = settling.union(flight.task for flight in self._flights)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settle_s)
            for task in settling & late:
                task.cancel()

    @override
    def set_available(self, engine_id: str, available: bool) -> None:
        self._scheduler.set_available(engine_id, available)
        self._wake()

    @override
    def interrupt(self, engine_id: str, why: str) -> None:
        for flight in self._flights.on(engine_id):
            flight.take_back(EngineStalled(why, engine_id=engine_id))

    @override
    def resend_lost(self, engine_id: str) -> None:
        # It is most likely the oldest one, provided that later chunks have overtaken it.
        oldest = next(self._flights.on(engine_id), None)
        if oldest is not None and self._scheduler.overtaken(oldest.chunk):
            why = f"engine {engine_id}: the reply was lost"
            oldest.take_back(ChunkInterrupted(why, engine_id=engine_id))

    @override
    def chunks_on(self, engine_id: str) -> Iterator[Chunk]:
        return (flight.chunk for flight in self._flights.on(engine_id))

    @override
    def set_reads(self, engine_id: str, reads: bool) -> None:
        self._scheduler.set_reads(engine_id, reads)

    @override
    def take_back(self, chunks: Sequence[Chunk], why: str) -> None:
        for chunk in chunks:
            flight = self._flights.of(chunk.request)
            if flight is not None and flight.chunk is chunk:
                flight.take_back(ChunkRecalled(why, engine_id=chunk.engine_id))

    @override
    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        if self._scheduler.loaded(engine_id, load):
            self._wake()
        for observer in self.runs.observers:
            observer.loaded(engine_id, load, self._clock())

    @override
    def weights_changed(self, engine_id: str, version: str) -> None:
        logger.info("engine %s serves weights %s", engine_id, version)
        self._scheduler.forget_kv()
        for observer in self.runs.observers:
            observer.weights_changed(engine_id, version, self._clock())
        self._wake()

    @override
    def health_changed(self, engine_id: str, state: State, why: str) -> None:
        for observer in self.runs.observers:
            observer.health(engine_id, state, why, self._clock())

    @override
    def elapsed(self, seconds: float) -> None:
        self._scheduler.elapsed(seconds)

    def stored(self, rid: str, complete: bool) -> None:
        """Records that the KV of a chunk has reached the pool (link/server.py)."""
        request = self._scheduler.stored(rid, complete)
        run = self.runs.by_group.get(request.group.uid) if request is not None else None
        if request is None or run is None:
            return
        now, returned_at = self._clock(), self._scheduler.returned_at(request)
        # An acknowledgement may overtake the reply.
        after_s = 0.0 if returned_at is None else now - returned_at
        for observer in run.observers:
            observer.stored(request, complete, after_s, now)
        self._wake()

    async def run(self) -> None:
        """Runs until cancelled, and then aborts every chunk in flight."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._dispatch(tasks)
                self._take(await self._next_ended())
                while not self._ended.empty():
                    self._take(self._ended.get_nowait())

    async def _next_ended(self) -> Flight | None:
        """Returns the next flight that ended; None when the scheduler is to be checked for work
        again."""
        wake_at = self._scheduler.wake_at
        if wake_at is None or self.paused:
            return await self._ended.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at - self._clock())):
                return await self._ended.get()
        except TimeoutError:
            return None

    def _wake(self) -> None:
        """Makes `run` check for work although no chunk came back."""
        self._ended.put_nowait(None)

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        if self.paused:
            return
        while (chunk := self._scheduler.next_assignment(self._clock())) is not None:
            run = self.runs.by_group[chunk.request.group.uid]
            self._flights.send(tasks, run, chunk)
            for observer in run.observers:
                observer.sent(chunk, self._clock())

    def _take(self, flight: Flight | None) -> None:
        if flight is None:
            return
        run, request, group = flight.run, flight.chunk.request, flight.chunk.request.group
        if flight.stream is not None and (rest := flight.result.reply) is not None:
            flight.stream.report(rest)  # an observer may abort the request now
        result = self._flights.land(flight)
        aborted = result.reply is not None and result.reply.tokenless
        if aborted or isinstance(result.error, EngineUnavailable):
            self._scheduler.set_available(result.chunk.engine_id, False)
        self._scheduler.complete(result)
        finished = request.state is RequestState.FINISHED  # read now: an observer may abort it
        for observer in run.observers:
            if result.reply is None:
                observer.lost(result)
            else:
                observer.grown(result)
        if result.error is not None:
            logger.debug("chunk %s was lost: %s", result.chunk.rid, result.error)
        if finished and group.uid in run.unfinished:
            run.finish(request)
        if group.uid in run.unfinished and group.withdrawn:
            run.leave(group)
        self.runs.check()

    async def _until_landed(
        self, wanted: Callable[[Chunk], bool], why: str, *, restart: bool = False
    ) -> None:
        await self._flights.until_landed(wanted, why, restart=restart)
        if self._error is not None:
            raise self._error
