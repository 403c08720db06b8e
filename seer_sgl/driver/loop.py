"""The asyncio loop: sends what the scheduler assigns, hands back what engines return.

It decides nothing. One task a chunk in flight; everything else happens between two awaits.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

from seer_sgl.errors import ChunkInterrupted, EngineError, EngineUnavailable
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Chunk, ChunkReply, ChunkResult, EngineLoad, Group, Request, RequestState

from .engine import Engine

SETTLE_S = 3.0  # a little longer than an abort may take
Clock = Callable[[], float]
Amend = Callable[[Request, ChunkReply], ChunkReply]
ChunkTask = asyncio.Task[ChunkReply | EngineError]


class Observer:
    """Sees what happens in a rollout; override what is of interest. Called between two awaits."""

    def sent(self, chunk: Chunk, now: float) -> None:
        """A chunk went to its engine."""

    def returned(self, result: ChunkResult) -> None:
        """A chunk came back; its request has not grown yet."""

    def finished(self, request: Request) -> None:
        """A request is complete."""

    def given_up(self, group: Group) -> None:
        """Nothing of the group is sent again, though some of its requests are incomplete."""

    def stored(self, request: Request, whole: bool, now: float) -> None:
        """The KV of the request's newest chunk is in the pool, or as much as there will be."""

    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        """An engine told how busy it is."""


class Run:
    """The groups of one caller. Complete or given-up groups appear in `done`."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers
        self.done: asyncio.Queue[Group] = asyncio.Queue()
        self.unfinished: dict[str, Group] = {}


class RolloutLoop:
    """Drives a Scheduler against engines until it is cancelled.

    `amend` may shorten a reply before it counts (string stops across chunks). `clock`: seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[str, Engine],
        clock: Clock,
        amend: Amend,
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._clock = clock
        self._amend = amend
        self._results: asyncio.Queue[ChunkResult | None] = asyncio.Queue()
        self._inflight: dict[str, tuple[Run, Chunk, ChunkTask]] = {}  # by request uid
        self._interrupted: dict[str, str] = {}  # request uid -> why its chunk was taken back
        self._runs: dict[str, Run] = {}  # by group id, while the group is unfinished
        self._open: set[Run] = set()  # those among them, each once

    def submit(self, groups: Sequence[Group], observers: Sequence[Observer]) -> Run:
        """Roll the groups out. Raises ValueError for a group id that is under way already."""
        for group in groups:
            if group.group_id in self._runs:
                raise ValueError(f"group {group.group_id!r} is being rolled out already")
        run = Run(observers)
        for group in groups:
            self._runs[group.group_id] = run
            run.unfinished[group.group_id] = group
            self._open.add(run)
            self._scheduler.submit(group)
        self._wake()
        return run

    def close(self, run: Run) -> None:
        """The caller is done: what is unfinished is given up, its chunks in flight aborted."""
        for group in list(run.unfinished.values()):
            self._scheduler.withdraw(group)
            self._leave(run, group)
        run.observers = ()
        self._wake()

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._runs

    async def settle(self) -> None:
        """Give everything up and wait until the engines have heard of it."""
        for run in list(self._open):
            self.close(run)
        tasks = [task for _, _, task in self._inflight.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=SETTLE_S)

    def set_available(self, engine_id: str, available: bool) -> None:
        """An engine went away or came back (monitor.py)."""
        self._scheduler.set_available(engine_id, available)
        self._wake()

    def interrupt(self, engine_id: str, why: str) -> None:
        """Take every chunk away from an engine; they are sent again, elsewhere if possible."""
        for uid, (_, chunk, _) in self._inflight.items():
            if chunk.engine_id == engine_id:
                self._interrupt(uid, why)

    def lost_one(self, engine_id: str) -> None:
        """An engine no longer has one of its chunks (monitor.py): most likely the oldest, if later
        ones have overtaken it. It is sent again."""
        for uid, (_, chunk, _) in self._inflight.items():  # in the order in which they were sent
            if chunk.engine_id == engine_id:
                if self._scheduler.overtaken(chunk):
                    self._interrupt(uid, f"engine {engine_id}: the reply was lost")
                return

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """An engine told how busy it is (monitor.py)."""
        if self._scheduler.loaded(engine_id, load):
            self._wake()
        for run in self._open:
            for observer in run.observers:
                observer.loaded(engine_id, load, self._clock())

    def looked(self, seconds: float) -> None:
        """So much time has passed, counted in looks (monitor.py)."""
        self._scheduler.looked(seconds)

    def stored(self, rid: str, whole: bool) -> None:
        """The KV of a chunk has reached the pool (link/server.py)."""
        request = self._scheduler.stored(rid, whole)
        run = self._runs.get(request.group.group_id) if request is not None else None
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
        if wake_at is None:
            return await self._results.get()
        try:
            async with asyncio.timeout(max(0.0, wake_at - self._clock())):
                return await self._results.get()
        except TimeoutError:
            return None

    def _wake(self) -> None:
        """Look for work again although no chunk came back."""
        self._results.put_nowait(None)

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while (chunk := self._scheduler.next_assignment(self._clock())) is not None:
            run = self._runs[chunk.request.group.group_id]
            task = tasks.create_task(self._serve(chunk))
            task.add_done_callback(functools.partial(self._served, chunk))
            self._inflight[chunk.request.uid] = (run, chunk, task)
            for observer in run.observers:
                observer.sent(chunk, self._clock())

    async def _serve(self, chunk: Chunk) -> ChunkReply | EngineError:
        """One chunk, start to end."""
        try:
            reply = await self._engines[chunk.engine_id].generate(chunk)
        except EngineError as error:
            return error
        return self._amend(chunk.request, reply)

    def _served(self, chunk: Chunk, task: ChunkTask) -> None:
        """The task of a chunk is over: exactly one result, also when it was never started."""
        outcome: ChunkReply | EngineError
        if task.cancelled():
            why = self._interrupted.get(chunk.request.uid)
            if why is None:  # the loop itself is being cancelled
                return
            outcome = ChunkInterrupted(why)
        elif task.exception() is not None:  # an error of ours; it ends the loop
            return
        else:
            outcome = task.result()
        if isinstance(outcome, EngineError):
            result = ChunkResult(chunk=chunk, now=self._clock(), error=outcome)
        else:
            result = ChunkResult(chunk=chunk, now=self._clock(), reply=outcome)
        self._results.put_nowait(result)

    def _take(self, result: ChunkResult | None) -> None:
        if result is None:
            return
        request, group = result.chunk.request, result.chunk.request.group
        run, _, _ = self._inflight.pop(request.uid)
        self._interrupted.pop(request.uid, None)
        aborted = result.reply is not None and not result.reply.ids
        if aborted or isinstance(result.error, EngineUnavailable):
            self._scheduler.set_available(result.chunk.engine_id, False)
        for observer in run.observers:
            observer.returned(result)
        self._scheduler.complete(result)
        if request.state is RequestState.FINISHED:
            for observer in run.observers:
                observer.finished(request)
        if group.group_id in run.unfinished and (group.finished or group.withdrawn):
            self._leave(run, group)
            run.done.put_nowait(group)

    def _leave(self, run: Run, group: Group) -> None:
        """The group is complete or given up: nothing of it stays in flight."""
        del self._runs[group.group_id], run.unfinished[group.group_id]
        if not run.unfinished:
            self._open.discard(run)
        for request in group.requests:
            if request.uid in self._inflight:
                self._interrupt(request.uid, "the group was given up")
        if group.withdrawn:
            for observer in run.observers:
                observer.given_up(group)

    def _interrupt(self, uid: str, why: str) -> None:
        if uid not in self._interrupted:
            self._interrupted[uid] = why
            self._inflight[uid][2].cancel()
