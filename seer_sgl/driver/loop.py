"""The asyncio loop: sends what the scheduler assigns, hands back what engines return.

It decides nothing. One task per chunk in flight; everything else happens between two awaits.
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
BREACH = "the driver is idle"  # begins the message about what is left over then
SETTLE_S = 3.0  # a little longer than an abort may take
# How long an engine has to return what a chunk has so far; then the chunk is taken back without.
RECALL_S = 5.0
Clock = Callable[[], float]
ChunkTask = asyncio.Task[ChunkReply | EngineError]


class Flight:
    """A chunk in flight. `taken_back`: why nothing is expected of it any more."""

    def __init__(self, run: Run, chunk: Chunk, task: ChunkTask, watch: Watch | None) -> None:
        self.run = run
        self.chunk = chunk
        self.task = task
        self.watch = watch
        self.recalled = False  # its engine was asked for what there is
        self.taken_back: EngineError | None = None


class RolloutLoop:
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it counts (string stops across chunks). `clock`: seconds.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, amend: Amend) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._amend = amend
        self.engines: dict[str, Engine] = {}  # by id
        self._results: asyncio.Queue[ChunkResult | None] = asyncio.Queue()
        self._inflight: dict[str, Flight] = {}  # by request uid, in the order of sending
        self._runs: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self._open: dict[Run, None] = {}  # those among them, each once
        self._pauses = 0  # that callers have asked for and not taken back
        self._error: RolloutError | None = None  # what ended the driver
        self._held = False  # until all engines serve the same weights
        self._landed = asyncio.Event()  # a chunk is over
        self._recalls: set[asyncio.Task[None]] = set()

    def add_engine(self, slot: EngineSlot, engine: Engine) -> None:
        """An engine joins. Raises ValueError for the name of another one that is there."""
        self._scheduler.add_engine(slot)
        self.engines[slot.engine_id] = engine
        for observer in self._observers():
            observer.joined(engine.info, self._clock())
        self._wake()

    async def remove_engine(self, engine_id: str) -> None:
        """An engine leaves, once its chunks are back: divided ones with the tokens they have, the
        others when they end. Raises KeyError for an engine that is not there."""
        self._scheduler.drain(engine_id)
        await self._until_landed(
            lambda chunk: chunk.engine_id == engine_id, f"engine {engine_id} leaves"
        )
        if engine_id not in self.engines:  # two callers asked for it
            return
        del self.engines[engine_id]
        self._scheduler.remove_engine(engine_id)
        for observer in self._observers():
            observer.left(engine_id, self._clock())

    def leaving(self, engine_id: str) -> bool:
        """Whether an engine is gone or about to go."""
        return engine_id not in self.engines or self._scheduler.leaving(engine_id)

    def submit(
        self,
        groups: Sequence[Group],
        make_sample: SampleMaker,
        observers: Sequence[Observer],
        caller: str = "",
    ) -> Run:
        """Roll the groups out. Raises ValueError for a group or a request whose uid is under way
        already; then nothing has changed."""
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
        """Add requests to a growing group. Raises ValueError if it does not grow any more."""
        self._scheduler.grow(group, requests)
        self._wake()

    def complete_group(self, run: Run, group: Group) -> None:
        """No more requests of the group will come."""
        self._scheduler.complete_group(group)
        if group.uid in run.unfinished and _all_there(group):
            self._leave(run, group)

    def abort(self, request: Request) -> None:
        """End a request with the tokens it has."""
        run = self._runs.get(request.group.uid)
        if run is None or request.state is RequestState.FINISHED:
            return
        if self._scheduler.abort(request, self._clock()):
            self._finished(run, request)
        elif request.uid in self._inflight:
            self._recall(self._inflight[request.uid], "the request was aborted")

    def close(self, run: Run) -> None:
        """The caller is done: what is unfinished is given up, its chunks in flight aborted."""
        failure = Failure(FailureKind.LEFT, "its caller left")
        for group in list(run.unfinished.values()):
            self._scheduler.withdraw(group, failure)
            self._leave(run, group)
        run.observers = ()
        self._wake()

    def fail(self, error: RolloutError) -> None:
        """The driver has ended: nobody is to wait for ever."""
        self._error = error
        self._inflight.clear()
        self._landed.set()
        for run in self._open:
            run.fail(error)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything, or may not have it now."""
        return not self._runs or self._pauses > 0 or self._held

    @property
    def stands_still(self) -> bool:
        """Whether callers wait, and nothing is in flight or due that could bring them on."""
        return bool(self._runs) and not self._inflight and self._scheduler.wake_at is None

    async def pause(self) -> None:
        """Dispatch nothing more; returns when nothing is in flight. Divided chunks are ended with
        the tokens they have; others begin again after `resume`. Raises RolloutError if the driver
        ends meanwhile."""
        self._pauses += 1
        await self._until_landed(lambda _: True, "the driver is paused")

    def resume(self) -> None:
        """Take one pause back; after the last one, dispatch again."""
        self._pauses = max(0, self._pauses - 1)
        self._wake()

    def hold(self) -> None:
        """Dispatch nothing until `release`; what is in flight goes on."""
        self._held = True

    def release(self) -> None:
        """Dispatch again, unless paused."""
        self._held = False
        self._wake()

    async def settle(self) -> None:
        """Give everything up and wait until the engines have been asked to abort it."""
        for run in list(self._open):
            self.close(run)
        tasks = [flight.task for flight in self._inflight.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    def set_available(self, engine_id: str, available: bool) -> None:
        """An engine went away or came back (monitor.py)."""
        self._scheduler.set_available(engine_id, available)
        self._wake()

    def interrupt(self, engine_id: str, why: str) -> None:
        """Take every chunk away from an engine; they are sent again, elsewhere if possible."""
        for flight in self._inflight.values():
            if flight.chunk.engine_id == engine_id:
                self._take_back(flight, ChunkInterrupted(why, engine_id=engine_id))

    def lost_one(self, engine_id: str) -> None:
        """An engine no longer has one of its chunks (monitor.py): most likely the oldest, if later
        ones have overtaken it. It is sent again."""
        for flight in self._inflight.values():  # in the order in which they were sent
            if flight.chunk.engine_id == engine_id:
                if self._scheduler.overtaken(flight.chunk):
                    why = f"engine {engine_id}: the reply was lost"
                    self._take_back(flight, ChunkInterrupted(why, engine_id=engine_id))
                return

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """An engine reported how busy it is (monitor.py)."""
        if self._scheduler.loaded(engine_id, load):
            self._wake()
        for observer in self._observers():
            observer.loaded(engine_id, load, self._clock())

    def looked(self, seconds: float) -> None:
        """So much time has passed, counted in looks (monitor.py)."""
        self._scheduler.looked(seconds)

    def stored(self, rid: str, whole: bool) -> None:
        """The KV of a chunk has reached the pool (link/server.py)."""
        request = self._scheduler.stored(rid, whole)
        run = self._runs.get(request.group.uid) if request is not None else None
        if request is None or run is None:
            return
        for observer in run.observers:
            observer.stored(request, whole, self._clock())
        self._wake()

    async def run(self) -> None:
        """Work for ever. On cancellation every chunk in flight is aborted first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._dispatch(tasks)
                self._take(await self._next_result())
                while not self._results.empty():
                    self._take(self._results.get_nowait())

    async def _next_result(self) -> ChunkResult | None:
        """What comes back next; None when it is time to look again."""
        wake_at = self._scheduler.wake_at
        if wake_at is None or self._pauses or self._held:
            return await self._results.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at - self._clock())):
                return await self._results.get()
        except TimeoutError:
            return None

    def _wake(self) -> None:
        """Look for work again although no chunk came back."""
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
        """One chunk, start to end."""
        on_tokens = None if watch is None else watch.received
        try:
            reply = await self.engines[chunk.engine_id].generate(chunk, on_tokens)
        except EngineError as error:
            return error
        return self._amend(chunk.request, reply) if watch is None else watch.ended(reply)

    def _served(self, flight: Flight, task: ChunkTask) -> None:
        """The task of a chunk is over: exactly one result, also when it was never started."""
        outcome: ChunkReply | EngineError
        if task.cancelled():
            if flight.taken_back is None:  # the loop itself is being cancelled
                return
            outcome = flight.taken_back
        elif task.exception() is not None:  # an error of ours; it ends the loop
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
        finished = request.state is RequestState.FINISHED  # an observer may abort it, too
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
        """A request is complete, and with it perhaps its group."""
        group = request.group
        sample = run.make_sample(request)
        group.samples.append(sample)
        for observer in run.observers:
            observer.finished(request, sample)
        if _all_there(group):
            self._leave(run, group)

    def _leave(self, run: Run, group: Group) -> None:
        """The group is complete or given up: nothing of it stays in flight. Observers may have led
        here before their caller does."""
        if group.uid not in self._runs:
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
        """When nothing is left to do, the scheduler's books are empty, or there is a defect."""
        if self._runs or self._inflight or self._error is not None:
            return
        for breach in self._scheduler.check():
            logger.error("%s, but %s", BREACH, breach)

    def _take_back(self, flight: Flight, error: EngineError) -> None:
        """Nothing is expected of a chunk any more."""
        if flight.taken_back is None:
            flight.taken_back = error
            flight.task.cancel()

    def _recall(self, flight: Flight, why: str) -> None:
        """Ask the engine for what a chunk has so far. A chunk that keeps nothing is left alone
        unless its caller wants its tokens."""
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
        """Recall some chunks in flight, and wait until all of them are back."""
        while flights := [each for each in self._inflight.values() if wanted(each.chunk)]:
            for flight in flights:
                self._recall(flight, why)
            self._landed.clear()
            await self._landed.wait()
        if self._error is not None:
            raise self._error


def _all_there(group: Group) -> bool:
    """Whether a group is complete, and the samples of all its requests are made."""
    return group.complete and len(group.samples) == len(group.requests)
