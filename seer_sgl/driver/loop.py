"""The asyncio loop: sends the chunks the scheduler assigns, and returns the engines' replies to it.

The loop decides nothing. The chunks in flight are tasks of their own (flights.py); all other work
happens between two awaits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from seer_sgl.errors import ChunkInterrupted, EngineUnavailable, RolloutError
from seer_sgl.scheduling.engine_index import EngineSlot
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import (
    Chunk,
    ChunkResult,
    EngineLoad,
    Failure,
    FailureKind,
    Group,
    Request,
    RequestState,
)

from .engine import Engine
from .flights import Clock, Flights
from .observer import Observer
from .run import Run
from .samples import SampleMaker
from .stop_strings import Amend

logger = logging.getLogger(__name__)
BREACH = "the driver is idle"  # prefix of the log message about leftover scheduler state
SETTLE_S = 3.0  # a little longer than an abort may take


class RolloutLoop:
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it is recorded (stop strings across chunks). `clock`:
    seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, amend: Amend) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.engines: dict[str, Engine] = {}  # by id
        self._results: asyncio.Queue[ChunkResult | None] = asyncio.Queue()
        self._flights = Flights(self.engines, clock, amend, self._results.put_nowait)
        self._runs: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self._open: dict[Run, None] = {}  # the runs in `_runs`, each once
        self._pauses = 0  # pauses without a resume yet
        self._error: RolloutError | None = None  # the reason why the driver ended
        self._held = False  # until all engines serve the same weights

    def add_engine(self, slot: EngineSlot, engine: Engine) -> None:
        """Adds an engine. Raises ValueError if its id is already in use."""
        self._scheduler.add_engine(slot)
        self.engines[slot.engine_id] = engine
        for observer in self._observers():
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
        for observer in self._observers():
            observer.left(engine_id, self._clock())

    def leaving(self, engine_id: str) -> bool:
        """Returns whether an engine has left the fleet or is leaving it."""
        return engine_id not in self.engines or self._scheduler.leaving(engine_id)

    def submit(
        self,
        groups: Sequence[Group],
        make_sample: SampleMaker,
        observers: Sequence[Observer],
        caller: str = "",
    ) -> Run:
        """Starts the rollout of the groups.

        Raises ValueError if the uid of a group or a request is already in use; then nothing has
        changed.
        """
        seen: set[str] = set()
        for group in groups:
            if group.uid in self._runs or group.uid in seen:
                raise ValueError(f"group {group.group_id!r} is being rolled out already")
            seen.add(group.uid)
        self._scheduler.check_new(request for group in groups for request in group.requests)
        run = Run(self, make_sample, observers)
        for group in groups:
            group.caller = caller
            self._runs[group.uid] = run
            run.unfinished[group.uid] = group
            self._open[run] = None
            self._scheduler.submit(group)
            if group.complete:  # it has no requests
                self._leave(run, group)
        self._wake()
        return run

    def grow(self, run: Run, group: Group, requests: Sequence[Request]) -> None:
        """Adds requests to a growing group. Raises ValueError if the group no longer grows."""
        self._scheduler.grow(group, requests)
        self._wake()

    def complete_group(self, run: Run, group: Group) -> None:
        """Marks a growing group as complete: no more requests follow."""
        self._scheduler.complete_group(group)
        if group.uid in run.unfinished and _has_all_samples(group):
            self._leave(run, group)

    def abort(self, request: Request) -> None:
        """Ends a request with the tokens it has."""
        run = self._runs.get(request.group.uid)
        if run is None or request.state is RequestState.FINISHED:
            return
        if self._scheduler.abort(request, self._clock()):
            self._finished(run, request)
        elif (flight := self._flights.of(request)) is not None:
            self._flights.recall(flight, "the request was aborted")

    def close(self, run: Run) -> None:
        """Gives up the run's unfinished groups and aborts their chunks in flight."""
        failure = Failure(FailureKind.LEFT, "its caller left")
        for group in list(run.unfinished.values()):
            self._scheduler.withdraw(group, failure)
            self._leave(run, group)
        run.observers = ()
        self._wake()

    def fail(self, error: RolloutError) -> None:
        """Ends every run with an error, so that no caller waits for ever."""
        self._error = error
        self._flights.abandon()
        for run in self._open:
            run.fail(error)

    @property
    def idle(self) -> bool:
        """Whether no caller waits, or dispatch is paused or on hold."""
        return not self._runs or self._pauses > 0 or self._held

    @property
    def stands_still(self) -> bool:
        """Whether callers wait although no chunk is in flight and no retry is due."""
        return bool(self._runs) and not self._flights and self._scheduler.wake_at is None

    async def pause(self) -> None:
        """Stops dispatching, and returns when no chunk is in flight.

        Divided chunks end early with the tokens they have; others begin again after `resume`.
        Raises RolloutError if the driver ends meanwhile.
        """
        self._pauses += 1
        await self._until_landed(lambda _: True, "the driver is paused", restart=True)

    def resume(self) -> None:
        """Ends one pause. The loop dispatches again after the last one."""
        self._pauses = max(0, self._pauses - 1)
        self._wake()

    def hold(self) -> None:
        """Stops dispatching until `release`; chunks in flight continue."""
        self._held = True

    def release(self) -> None:
        """Ends the hold: the loop dispatches again, unless it is paused."""
        self._held = False
        self._wake()

    async def settle(self) -> None:
        """Gives up all runs, and waits until their chunks are aborted (SETTLE_S at most)."""
        for run in list(self._open):
            self.close(run)
        tasks = [flight.task for flight in self._flights]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    def set_available(self, engine_id: str, available: bool) -> None:
        """Marks an engine as available or out (monitor.py)."""
        self._scheduler.set_available(engine_id, available)
        self._wake()

    def interrupt(self, engine_id: str, why: str) -> None:
        """Takes every chunk back from an engine and sends it again, elsewhere if possible."""
        for flight in self._flights.on(engine_id):
            flight.take_back(ChunkInterrupted(why, engine_id=engine_id))

    def lost_one(self, engine_id: str) -> None:
        """Sends a chunk again that the engine has lost (monitor.py).

        It is most likely the oldest one, provided that later chunks have overtaken it.
        """
        oldest = next(self._flights.on(engine_id), None)
        if oldest is not None and self._scheduler.overtaken(oldest.chunk):
            why = f"engine {engine_id}: the reply was lost"
            oldest.take_back(ChunkInterrupted(why, engine_id=engine_id))

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """Records the load that an engine reported (monitor.py)."""
        if self._scheduler.loaded(engine_id, load):
            self._wake()
        for observer in self._observers():
            observer.loaded(engine_id, load, self._clock())

    def looked(self, seconds: float) -> None:
        """Advances the scheduler's time by `seconds`, counted in polls (monitor.py)."""
        self._scheduler.looked(seconds)

    def stored(self, rid: str, whole: bool) -> None:
        """Records that the KV of a chunk has reached the pool (link/server.py)."""
        request = self._scheduler.stored(rid, whole)
        run = self._runs.get(request.group.uid) if request is not None else None
        if request is None or run is None:
            return
        for observer in run.observers:
            observer.stored(request, whole, self._clock())
        self._wake()

    async def run(self) -> None:
        """Runs until cancelled, and then aborts every chunk in flight."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._dispatch(tasks)
                self._take(await self._next_result())
                while not self._results.empty():
                    self._take(self._results.get_nowait())

    async def _next_result(self) -> ChunkResult | None:
        """Returns the next result; None when the scheduler is to be checked for work again."""
        wake_at = self._scheduler.wake_at
        if wake_at is None or self._pauses or self._held:
            return await self._results.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at - self._clock())):
                return await self._results.get()
        except TimeoutError:
            return None

    def _wake(self) -> None:
        """Makes `run` check for work although no chunk came back."""
        self._results.put_nowait(None)

    def _observers(self) -> Iterable[Observer]:
        return [observer for run in self._open for observer in run.observers]

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        if self._pauses or self._held:
            return
        while (chunk := self._scheduler.next_assignment(self._clock())) is not None:
            run = self._runs[chunk.request.group.uid]
            self._flights.send(tasks, run, chunk)
            for observer in run.observers:
                observer.sent(chunk, self._clock())

    def _take(self, result: ChunkResult | None) -> None:
        if result is None:
            return
        request, group = result.chunk.request, result.chunk.request.group
        run = self._flights.land(request)
        aborted = result.reply is not None and not result.reply.ids
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
            self._finished(run, request)
        elif group.uid in run.unfinished and group.withdrawn:
            self._leave(run, group)
        self._check()

    def _finished(self, run: Run, request: Request) -> None:
        """Makes the sample of a finished request, and closes its group after the last one."""
        group = request.group
        sample = run.make_sample(request)
        group.samples.append(sample)
        for observer in run.observers:
            observer.finished(request, sample)
        if _has_all_samples(group):
            self._leave(run, group)

    def _leave(self, run: Run, group: Group) -> None:
        """Closes a group that is complete or given up, and takes back its chunks in flight."""
        if group.uid not in self._runs:  # an observer's call has already closed it
            return
        del self._runs[group.uid], run.unfinished[group.uid]
        if not run.unfinished:
            self._open.pop(run, None)
        for request in group.requests:
            flight = self._flights.of(request)
            if flight is not None:
                flight.take_back(ChunkInterrupted("the group was given up"))
        for observer in run.observers:
            observer.closed(group, group.failure)
        run.over(group)
        self._check()

    def _check(self) -> None:
        """Logs an error if the driver is idle and the scheduler still holds state: a defect."""
        if self._runs or self._flights or self._error is not None:
            return
        for breach in self._scheduler.check():
            logger.error("%s, but %s", BREACH, breach)

    async def _until_landed(
        self, wanted: Callable[[Chunk], bool], why: str, *, restart: bool = False
    ) -> None:
        await self._flights.until_landed(wanted, why, restart=restart)
        if self._error is not None:
            raise self._error


def _has_all_samples(group: Group) -> bool:
    return group.complete and len(group.samples) == len(group.requests)
