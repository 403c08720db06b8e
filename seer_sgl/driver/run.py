"""`Run`: the groups of one `submit`, while a driver rolls them out."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from seer_sgl.errors import ChunkInterrupted, RolloutError
from seer_sgl.types import Failure, FailureKind, Group, OnFailure, Request, RequestState

from .observer import Observer
from .samples import SampleMaker

if TYPE_CHECKING:
    from .loop import RolloutLoop


class Run:
    """An async iterator of ended groups: complete, or given up with a `failure`.

    While it is `open`, more groups may be added. Raises RolloutError when the driver has ended.
    `own_observers`: of this run; those of all runs receive its events also after it is closed.
    """

    def __init__(
        self,
        loop: "RolloutLoop",
        make_sample: SampleMaker,
        own_observers: Sequence[Observer],
        caller: str,
        on_failure: OnFailure,
    ) -> None:
        self._loop = loop
        self._make_sample = make_sample
        self.own_observers = own_observers
        self.caller = caller
        self._on_failure = on_failure
        self.open = True
        self.unfinished: dict[str, Group] = {}  # by uid
        # None: the run has ended, and a waiting iterator ends too.
        self._ended: asyncio.Queue[Group | RolloutError | None] = asyncio.Queue()
        self._error: RolloutError | None = None
        loop.runs[self] = None

    def observe(self, observer: Observer) -> None:
        """Adds an observer of this run."""
        self.own_observers = [*self.own_observers, observer]

    @property
    def observers(self) -> list[Observer]:
        """All observers that receive the run's events."""
        return [*self._loop.standing, *self.own_observers]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        while True:
            if self._ended.empty() and self._error is not None:
                raise self._error
            if self._ended.empty() and not self.unfinished and not self.open:
                raise StopAsyncIteration
            group = await self._ended.get()
            if isinstance(group, RolloutError):
                raise group
            if group is not None:
                return group

    def add(self, groups: Sequence[Group]) -> None:
        """Starts the rollout of more groups.

        Raises ValueError if the run is complete, or if the uid of a group or a request is already
        in use; then nothing has changed.
        """
        if not self.open:
            raise ValueError("the run is complete")
        loop, seen = self._loop, set[str]()
        for group in groups:
            if group.uid in loop.by_group or group.uid in seen:
                raise ValueError(f"group {group.group_id!r} is being rolled out already")
            seen.add(group.uid)
        loop.scheduler.check_new(request for group in groups for request in group.requests)
        for group in groups:
            group.caller, group.on_failure = self.caller, self._on_failure
            loop.by_group[group.uid] = self
            self.unfinished[group.uid] = group
            loop.scheduler.submit(group)
            self._submitted(group.requests)
            if group.withdrawn or _has_all_samples(group):  # given up before, or without requests
                self.leave(group)
        loop.wake()

    def restore(self, request: Request) -> None:
        """Makes the sample of a request that was finished when it was added, and reports it."""
        self.finish(request)

    def complete(self) -> None:
        """Marks the run as complete: no more groups follow."""
        self.open = False
        self._end_if_over()

    def grow(self, group: Group, requests: Sequence[Request]) -> None:
        """Adds requests to a growing group of this run. Raises ValueError for any other group."""
        if self.unfinished.get(group.uid) is not group:
            raise ValueError(f"group {group.group_id!r} does not grow in this run")
        self._loop.scheduler.grow(group, requests)
        self._submitted(requests)
        self._loop.wake()

    def complete_group(self, group: Group) -> None:
        """Marks a growing group as complete: no more requests follow."""
        self._loop.scheduler.complete_group(group)
        if group.uid in self.unfinished and _has_all_samples(group):
            self.leave(group)

    def prefer(self, group: Group) -> None:
        """Sends a group's requests before those of its caller's other groups from now on."""
        if group.uid in self.unfinished:
            self._loop.scheduler.prefer(group)

    def engine_of(self, request: Request) -> str | None:
        """Returns the engine of a request's chunk in flight; None without one."""
        flight = self._loop.flights.of(request)
        return None if flight is None else flight.chunk.engine_id

    def abort(self, request: Request) -> None:
        """Ends a request early, with the tokens that its engine returns.

        Its sample has the finish reason `abort`.
        """
        if request.group.uid not in self.unfinished or request.state is RequestState.FINISHED:
            return
        flights = self._loop.flights
        if self._loop.scheduler.abort(request, self._loop.clock()):
            self.finish(request)
        elif (flight := flights.of(request)) is not None:
            flight.aborted = True
            flights.recall(flight, "the request was aborted")

    def close(self) -> None:
        """Gives up the unfinished groups and aborts their chunks in flight."""
        failure = Failure(FailureKind.LEFT, "its caller left")
        self.open = False
        for group in list(self.unfinished.values()):
            self._loop.scheduler.withdraw(group, failure)
            self.leave(group)
        self._end_if_over()
        self.own_observers = ()
        self._loop.wake()

    def fail(self, error: RolloutError) -> None:
        """Ends the iteration with an error, because the driver has ended."""
        self._error = error
        self._ended.put_nowait(error)

    def finish(self, request: Request) -> None:
        """Makes the sample of a finished request, and closes its group after the last one."""
        group = request.group
        sample = self._make_sample(request)
        group.samples.append(sample)
        for observer in self.observers:
            observer.finished(request, sample)
        if _has_all_samples(group):
            self.leave(group)

    def leave(self, group: Group) -> None:
        """Closes a group that is complete or given up, and takes back its chunks in flight."""
        if group.uid not in self.unfinished:  # an observer's call has already closed it
            return
        del self._loop.by_group[group.uid], self.unfinished[group.uid]
        for request in group.requests:
            flight = self._loop.flights.of(request)
            if flight is not None:
                flight.take_back(ChunkInterrupted("the group was given up"))
        for observer in self.observers:
            observer.closed(group, group.failure)
        self._ended.put_nowait(group)
        self._end_if_over()
        self._loop.check()

    def _submitted(self, requests: Sequence[Request]) -> None:
        for observer in self.observers:
            observer.submitted(requests, self._loop.clock())

    def _end_if_over(self) -> None:
        """Forgets the run once no group is left and none follows, and wakes its iterator."""
        if self.open or self.unfinished:
            return
        if self in self._loop.runs:
            del self._loop.runs[self]
            for observer in self._loop.standing:
                observer.ended(self.caller, self._loop.clock())
        self._ended.put_nowait(None)


def _has_all_samples(group: Group) -> bool:
    return group.complete and len(group.samples) == len(group.requests)
