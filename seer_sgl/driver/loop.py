"""The asyncio loop: sends the chunks the scheduler assigns, and returns the engines' replies to it.

The loop decides nothing. It runs one task per chunk in flight; all other work happens between two
awaits.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Sequence

from seer_sgl.errors import (
    ChunkInterrupted,
    ChunkRecalled,
    EngineError,
    EngineUnavailable,
    RolloutError,
)
from seer_sgl.scheduling.engine_index import EngineSlot
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    ChunkResult,
    EngineLoad,
    Failure,
    FailureKind,
    Group,
    Request,
    RequestState,
)

from .engine import Engine
from .observer import Observer
from .run import Run
from .samples import SampleMaker
from .stop_strings import Amend
from .watch import Watch

logger = logging.getLogger(__name__)
BREACH = "the driver is idle"  # prefix of the log message about leftover scheduler state
SETTLE_S = 3.0  # a little longer than an abort may take
# How long an engine has to return the tokens of a recalled chunk; then the driver drops the chunk.
RECALL_S = 5.0
Clock = Callable[[], float]
ChunkTask = asyncio.Task[ChunkReply | EngineError]


class Flight:
    """A chunk in flight. `taken_back`: why the driver no longer expects a reply."""

    def __init__(self, run: Run, chunk: Chunk, task: ChunkTask, watch: Watch | None) -> None:
        self.run = run
        self.chunk = chunk
        self.task = task
        self.watch = watch
        self.recalled = False  # the engine was requested to end it early
        self.taken_back: EngineError | None = None


class RolloutLoop:
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it is recorded (stop strings across chunks). `clock`:
    seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, amend: Amend) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._amend = amend
        self.engines: dict[str, Engine] = {}  # by id
        self._results: asyncio.Queue[ChunkResult | None] = asyncio.Queue()
        self._inflight: dict[str, Flight] = {}  # by request uid, in the order of sending
        self._runs: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self._open: dict[Run, None] = {}  # the runs in `_runs`, each once
        self._pauses = 0  # pauses without a resume yet
        self._error: RolloutError | None = None  # the reason why the driver ended
        self._held = False  # until all engines serve the same weights
        self._landed = asyncio.Event()  # a chunk has ended
        self._recalls: set[asyncio.Task[None]] = set()

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
        elif request.uid in self._inflight:
            self._recall(self._inflight[request.uid], "the request was aborted")

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
        self._inflight.clear()
        self._landed.set()
        for run in self._open:
            run.fail(error)

    @property
    def idle(self) -> bool:
        """Whether no caller waits, or dispatch is paused or on hold."""
        return not self._runs or self._pauses > 0 or self._held

    @property
    def stands_still(self) -> bool:
        """Whether callers wait although no chunk is in flight and no retry is due."""
        return bool(self._runs) and not self._inflight and self._scheduler.wake_at is None

    async def pause(self) -> None:
        """Stops dispatching, and returns when no chunk is in flight.

        Divided chunks end early with the tokens they have; others begin again after `resume`.
        Raises RolloutError if the driver ends meanwhile.
        """
        self._pauses += 1
        await self._until_landed(lambda _: True, "the driver is paused")

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
        tasks = [flight.task for flight in self._inflight.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    def set_available(self, engine_id: str, available: bool) -> None:
        """Marks an engine as available or out (monitor.py)."""
        self._scheduler.set_available(engine_id, available)
        self._wake()

    def interrupt(self, engine_id: str, why: str) -> None:
        """Takes every chunk back from an engine and sends it again, elsewhere if possible."""
        for flight in self._inflight.values():
            if flight.chunk.engine_id == engine_id:
                self._take_back(flight, ChunkInterrupted(why, engine_id=engine_id))

    def lost_one(self, engine_id: str) -> None:
        """Sends a chunk again that the engine has lost (monitor.py).

        It is most likely the oldest one, provided that later chunks have overtaken it.
        """
        for flight in self._inflight.values():  # in the order of sending
            if flight.chunk.engine_id == engine_id:
                if self._scheduler.overtaken(flight.chunk):
                    why = f"engine {engine_id}: the reply was lost"
                    self._take_back(flight, ChunkInterrupted(why, engine_id=engine_id))
                return

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
            watch = Watch(chunk, run, self._amend) if chunk.request.watched else None
            task = tasks.create_task(self._serve(chunk, watch))
            flight = self._inflight[chunk.request.uid] = Flight(run, chunk, task, watch)
            task.add_done_callback(functools.partial(self._served, flight))
            for observer in run.observers:
                observer.sent(chunk, self._clock())

    async def _serve(self, chunk: Chunk, watch: Watch | None) -> ChunkReply | EngineError:
        on_tokens = None if watch is None else watch.received
        try:
            reply = await self.engines[chunk.engine_id].generate(chunk, on_tokens)
        except EngineError as error:
            return error
        return self._amend(chunk.request, reply) if watch is None else watch.ended(reply)

    def _served(self, flight: Flight, task: ChunkTask) -> None:
        """Queues exactly one result for a finished task, even if the task never started."""
        outcome: ChunkReply | EngineError
        if task.cancelled():
            if flight.taken_back is None:  # the loop itself is being cancelled
                return
            outcome = flight.taken_back
        elif task.exception() is not None:  # a defect of the driver; it ends the loop
            return
        else:
            outcome = task.result()
        chunk, now = flight.chunk, self._clock()
        if isinstance(outcome, EngineError):
            kept = flight.watch.kept if flight.watch is not None else None
            result = ChunkResult(chunk=chunk, now=now, reply=kept, error=outcome)
        else:
            recalled = flight.recalled
            result = ChunkResult(chunk=chunk, now=now, reply=outcome, recalled=recalled)
        self._results.put_nowait(result)

    def _take(self, result: ChunkResult | None) -> None:
        if result is None:
            return
        request, group = result.chunk.request, result.chunk.request.group
        run = self._inflight.pop(request.uid).run
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
        self._landed.set()
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
            flight = self._inflight.get(request.uid)
            if flight is not None:
                self._take_back(flight, ChunkInterrupted("the group was given up"))
        for observer in run.observers:
            observer.closed(group, group.failure)
        run.over(group)
        self._check()

    def _check(self) -> None:
        """Logs an error if the driver is idle and the scheduler still holds state: a defect."""
        if self._runs or self._inflight or self._error is not None:
            return
        for breach in self._scheduler.check():
            logger.error("%s, but %s", BREACH, breach)

    def _take_back(self, flight: Flight, error: EngineError) -> None:
        """Cancels a chunk's task; `error` becomes its result."""
        if flight.taken_back is None:
            flight.taken_back = error
            flight.task.cancel()

    def _recall(self, flight: Flight, why: str) -> None:
        """Requests the engine to end a chunk early with the tokens it has so far.

        A chunk that could not keep its tokens runs on, unless its request is being aborted or the
        loop is paused.
        """
        keeps = not flight.chunk.whole or flight.chunk.request.aborting or self._pauses > 0
        if flight.recalled or flight.task.done() or not keeps:
            return
        flight.recalled = True
        task = asyncio.create_task(self._end_early(flight, why))
        self._recalls.add(task)
        task.add_done_callback(self._recalls.discard)

    async def _end_early(self, flight: Flight, why: str) -> None:
        engine_id = flight.chunk.engine_id
        with contextlib.suppress(EngineError):
            await self.engines[engine_id].abort(flight.chunk)
        await asyncio.wait({flight.task}, timeout=RECALL_S)
        if not flight.task.done():
            self._take_back(flight, ChunkRecalled(why, engine_id=engine_id))

    async def _until_landed(self, wanted: Callable[[Chunk], bool], why: str) -> None:
        """Recalls the chunks in flight that are `wanted`, and waits until they are back."""
        while flights := [each for each in self._inflight.values() if wanted(each.chunk)]:
            for flight in flights:
                self._recall(flight, why)
            self._landed.clear()
            await self._landed.wait()
        if self._error is not None:
            raise self._error


def _has_all_samples(group: Group) -> bool:
    return group.complete and len(group.samples) == len(group.requests)
