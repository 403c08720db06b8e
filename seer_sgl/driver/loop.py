"""The asyncio loop: sends the chunks the scheduler assigns, and returns the engines' replies to it.

The loop decides nothing. The chunks in flight are tasks of their own (flights.py); all other work
happens between two awaits.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

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
from .flights import Clock, Flight, Flights
from .health import State
from .observer import Observer
from .run import Run
from .stop_strings import Amend

logger = logging.getLogger(__name__)
AT_ONCE = 256  # chunks that are sent before others have a turn: a fleet takes 10^5 at its start
BREACH = "the driver is idle"  # prefix of the log message about leftover scheduler state


class RolloutLoop:
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it is recorded (stop strings across chunks). `clock`:
    seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, amend: Amend, timing: Timing) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self._settle_s = timing.settle_s
        self.engines: dict[str, Engine] = {}  # by id
        self._ended: asyncio.Queue[Flight | None] = asyncio.Queue()  # None: a wake-up
        self.flights = Flights(self.engines, clock, amend, self._ended.put_nowait, timing.recall_s)
        self.runs: dict[Run, None] = {}  # that are open or have unfinished groups, each once
        self.by_group: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self.standing: list[Observer] = []  # of all runs
        self.paused = False  # no chunk is dispatched; the engines may be paused too
        self.error: RolloutError | None = None  # the reason why the driver ended

    def add_engine(self, slot: EngineSlot, engine: Engine) -> None:
        """Adds an engine. Raises ValueError if its id is already in use."""
        self.scheduler.add_engine(slot)
        self.engines[slot.engine_id] = engine
        for observer in self.observers:
            observer.joined(engine.info, self.clock())
        self.wake()

    async def remove_engine(self, engine_id: str) -> None:
        """Removes an engine once its chunks are back.

        Divided chunks end early with the tokens they have; the others run to their end. Raises
        KeyError for an unknown engine.
        """
        self.scheduler.drain(engine_id)
        await self.until_landed(
            lambda chunk: chunk.engine_id == engine_id, f"engine {engine_id} leaves"
        )
        if engine_id not in self.engines:  # another caller has removed it
            return
        del self.engines[engine_id]
        self.scheduler.remove_engine(engine_id)
        for observer in self.observers:
            observer.left(engine_id, self.clock())

    @property
    def observers(self) -> list[Observer]:
        """The standing observers, and the observers of each open run."""
        own = (observer for run in self.runs for observer in run.own_observers)
        return [*self.standing, *own]

    def fail(self, error: RolloutError) -> None:
        """Ends every run with an error, so that no caller waits for ever."""
        self.error = error
        self.flights.abandon()
        for run in self.runs:
            run.fail(error)

    @property
    def idle(self) -> bool:
        """Whether no caller waits, or dispatch is paused."""
        return not self.by_group or self.paused

    def check(self) -> None:
        """Logs an error if the driver is idle and the scheduler still holds state: a defect."""
        if self.by_group or self.flights or self.error is not None:
            return
        for breach in self.scheduler.check():
            logger.error("%s, but %s", BREACH, breach)

    async def settle(self) -> None:
        """Gives up all runs. Waits until their chunks are aborted and their sessions closed, for
        `settle_s` at most."""
        for run in list(self.runs):
            run.close()
        settling = {asyncio.create_task(engine.settle()) for engine in self.engines.values()}
        tasks = settling.union(flight.task for flight in self.flights)
        if tasks:
            try:
                await asyncio.wait(tasks, timeout=self._settle_s)
            finally:
                for task in settling:
                    task.cancel()

    def set_available(self, engine_id: str, available: bool) -> None:
        """Marks an engine as available or out: chunks go to available engines only."""
        self.scheduler.set_available(engine_id, available)
        self.wake()

    def interrupt(self, engine_id: str, why: str) -> None:
        """Takes every chunk back from an engine and sends it again, elsewhere if possible."""
        for flight in self.flights.on(engine_id):
            flight.take_back(EngineStalled(why, engine_id=engine_id))

    def resend_lost(self, engine_id: str) -> None:
        """Sends the chunk again that an engine has lost, if the loop can identify it."""
        # It is most likely the oldest one, provided that later chunks have overtaken it.
        oldest = next(self.flights.on(engine_id), None)
        if oldest is not None and self.scheduler.overtaken(oldest.chunk):
            why = f"engine {engine_id}: the reply was lost"
            oldest.take_back(ChunkInterrupted(why, engine_id=engine_id))

    def take_back(self, chunks: Sequence[Chunk], why: str) -> None:
        """Takes chunks back that have not begun, and sends their requests again."""
        for chunk in chunks:
            flight = self.flights.of(chunk.request)
            if flight is not None and flight.chunk is chunk:
                flight.take_back(ChunkRecalled(why, engine_id=chunk.engine_id))

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        if self.scheduler.loaded(engine_id, load):
            self.wake()
        for observer in self.observers:
            observer.loaded(engine_id, load, self.clock())

    def weights_changed(self, engine_id: str, version: str) -> None:
        """Records that an engine serves other weights than at its last poll."""
        logger.info("engine %s serves weights %s", engine_id, version)
        self.scheduler.forget_kv()
        for observer in self.observers:
            observer.weights_changed(engine_id, version, self.clock())
        self.wake()

    def health_changed(self, engine_id: str, state: State, why: str) -> None:
        for observer in self.observers:
            observer.health(engine_id, state, why, self.clock())

    def stored(self, rid: str, complete: bool) -> None:
        """Records that the KV of a chunk has reached the pool (link/server.py)."""
        request = self.scheduler.stored(rid, complete)
        run = self.by_group.get(request.group.uid) if request is not None else None
        if request is None or run is None:
            return
        now, returned_at = self.clock(), self.scheduler.returned_at(request)
        # An acknowledgement may overtake the reply.
        after_s = 0.0 if returned_at is None else now - returned_at
        for observer in run.observers:
            observer.stored(request, complete, after_s, now)
        self.wake()

    async def run(self) -> None:
        """Runs until cancelled, and then aborts every chunk in flight."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                if self._dispatch(tasks):
                    await asyncio.sleep(0)
                else:
                    self._take(await self._next_ended())
                while not self._ended.empty():
                    self._take(self._ended.get_nowait())

    async def _next_ended(self) -> Flight | None:
        """Returns the next flight that ended; None when the scheduler is to be checked for work
        again."""
        wake_at = self.scheduler.wake_at
        if wake_at is None or self.paused:
            return await self._ended.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at - self.clock())):
                return await self._ended.get()
        except TimeoutError:
            return None

    def wake(self) -> None:
        """Makes `run` check for work although no chunk came back."""
        self._ended.put_nowait(None)

    def _dispatch(self, tasks: asyncio.TaskGroup) -> bool:
        """Sends chunks, but not more than AT_ONCE. Returns whether there may be more to send."""
        for _ in range(AT_ONCE):
            chunk = None if self.paused else self.scheduler.next_assignment(self.clock())
            if chunk is None:
                return False
            run = self.by_group[chunk.request.group.uid]
            self.flights.send(tasks, run, chunk)
            for observer in run.observers:
                observer.sent(chunk, self.clock())
        return True

    def _take(self, flight: Flight | None) -> None:
        if flight is None:
            return
        run, request, group = flight.run, flight.chunk.request, flight.chunk.request.group
        if flight.stream is not None and (rest := flight.result.reply) is not None:
            flight.stream.report(rest)  # an observer may abort the request now
        result = self.flights.land(flight)
        aborted = result.reply is not None and result.reply.tokenless
        if aborted or isinstance(result.error, EngineUnavailable):
            self.scheduler.set_available(result.chunk.engine_id, False)
        self.scheduler.complete(result)
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
        self.check()

    async def until_landed(
        self, wanted: Callable[[Chunk], bool], why: str, *, restart: bool = False
    ) -> None:
        """Takes the chunks back that are `wanted` (flights.py), and returns when none is in flight.

        Raises RolloutError if the driver ends meanwhile.
        """
        await self.flights.until_landed(wanted, why, restart=restart)
        if self.error is not None:
            raise self.error
