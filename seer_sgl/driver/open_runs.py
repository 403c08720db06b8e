"""The open runs: accepts groups, and closes each one when it is complete or given up."""

import logging
from collections.abc import Callable, Sequence

from seer_sgl.errors import ChunkInterrupted, RolloutError
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Failure, FailureKind, Group, OnFailure, Request, RequestState

from .flights import Clock, Flights
from .observer import Observer
from .run import Run
from .samples import SampleMaker

logger = logging.getLogger(__name__)
BREACH = "the driver is idle"  # prefix of the log message about leftover scheduler state


class OpenRuns:
    """The runs that are open or have unfinished groups.

    `wake` makes the loop check the scheduler for work.
    """

    def __init__(
        self, scheduler: Scheduler, flights: Flights, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._flights = flights
        self._clock = clock
        self._wake = wake
        self.by_group: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self._open: dict[Run, None] = {}  # each run once
        self.standing: list[Observer] = []  # of all runs
        self._failed = False

    @property
    def observers(self) -> list[Observer]:
        """The standing observers, and the observers of each open run."""
        own = (observer for run in self._open for observer in run.own_observers)
        return [*self.standing, *own]

    def open(
        self,
        make_sample: SampleMaker,
        observers: Sequence[Observer],
        caller: str = "",
        on_failure: OnFailure = "group",
    ) -> Run:
        """Returns a run without groups, which stays open until it is completed or closed."""
        run = Run(self, make_sample, observers, caller, self.standing, on_failure=on_failure)
        self._open[run] = None
        return run

    def add(self, run: Run, groups: Sequence[Group]) -> None:
        """Starts the rollout of more groups. See `Run.add`."""
        if not run.open:
            raise ValueError("the run is complete")
        seen: set[str] = set()
        for group in groups:
            if group.uid in self.by_group or group.uid in seen:
                raise ValueError(f"group {group.group_id!r} is being rolled out already")
            seen.add(group.uid)
        self._scheduler.check_new(request for group in groups for request in group.requests)
        self._open[run] = None
        for group in groups:
            group.caller, group.on_failure = run.caller, run.on_failure
            self.by_group[group.uid] = run
            run.unfinished[group.uid] = group
            self._scheduler.submit(group)
            self._submitted(run, group.requests)
            if group.withdrawn or _has_all_samples(group):  # given up before, or without requests
                self.leave(run, group)
        self._wake()

    def restore(self, run: Run, request: Request) -> None:
        """Reports a request as finished that was so when it was added."""
        self.finished(run, request)

    def complete(self, run: Run) -> None:
        """Marks an open run as complete: no more groups follow."""
        run.open = False
        self._forget_if_ended(run)

    def grow(self, run: Run, group: Group, requests: Sequence[Request]) -> None:
        """Adds requests to a growing group."""
        self._scheduler.grow(group, requests)
        self._submitted(run, requests)
        self._wake()

    def complete_group(self, run: Run, group: Group) -> None:
        """Marks a growing group as complete: no more requests follow."""
        self._scheduler.complete_group(group)
        if group.uid in run.unfinished and _has_all_samples(group):
            self.leave(run, group)

    def prefer(self, group: Group) -> None:
        """Sends a group's requests before those of its caller's other groups."""
        if group.uid in self.by_group:
            self._scheduler.prefer(group)

    def abort(self, request: Request) -> None:
        """Ends a request with the tokens it has."""
        run = self.by_group.get(request.group.uid)
        if run is None or request.state is RequestState.FINISHED:
            return
        if self._scheduler.abort(request, self._clock()):
            self.finished(run, request)
        elif (flight := self._flights.of(request)) is not None:
            flight.aborted = True
            self._flights.recall(flight, "the request was aborted")

    def close(self, run: Run) -> None:
        """Gives up the run's unfinished groups."""
        failure = Failure(FailureKind.LEFT, "its caller left")
        run.open = False
        for group in list(run.unfinished.values()):
            self._scheduler.withdraw(group, failure)
            self.leave(run, group)
        self._forget_if_ended(run)
        run.own_observers = ()
        self._wake()

    def close_all(self) -> None:
        """Closes every run."""
        for run in list(self._open):
            self.close(run)

    def fail(self, error: RolloutError) -> None:
        """Ends every run with an error, because the driver has ended."""
        self._failed = True
        for run in self._open:
            run.fail(error)

    def finished(self, run: Run, request: Request) -> None:
        """Makes the sample of a finished request, and closes its group after the last one."""
        group = request.group
        sample = run.make_sample(request)
        group.samples.append(sample)
        for observer in run.observers:
            observer.finished(request, sample)
        if _has_all_samples(group):
            self.leave(run, group)

    def leave(self, run: Run, group: Group) -> None:
        """Closes a group that is complete or given up, and takes back its chunks in flight."""
        if group.uid not in self.by_group:  # an observer's call has already closed it
            return
        del self.by_group[group.uid], run.unfinished[group.uid]
        for request in group.requests:
            flight = self._flights.of(request)
            if flight is not None:
                flight.take_back(ChunkInterrupted("the group was given up"))
        for observer in run.observers:
            observer.closed(group, group.failure)
        run.ended(group)
        self._forget_if_ended(run)
        self.check()

    def _submitted(self, run: Run, requests: Sequence[Request]) -> None:
        for observer in run.observers:
            observer.submitted(requests, self._clock())

    def _forget_if_ended(self, run: Run) -> None:
        if run.open or run.unfinished:
            return
        if run in self._open:
            del self._open[run]
            for observer in self.standing:
                observer.ended(run.caller, self._clock())
        run.wake()

    def check(self) -> None:
        """Logs an error if the driver is idle and the scheduler still holds state: a defect."""
        if self.by_group or self._flights or self._failed:
            return
        for breach in self._scheduler.check():
            logger.error("%s, but %s", BREACH, breach)


def _has_all_samples(group: Group) -> bool:
    return group.complete and len(group.samples) == len(group.requests)
