"""What the runs of a driver share: its scheduler, its chunks in flight, and which runs are open."""

import logging
from collections.abc import Callable

from seer_sgl.errors import RolloutError
from seer_sgl.scheduling.scheduler import Scheduler

from .flights import Clock, Flights
from .observer import Observer
from .run import Run

logger = logging.getLogger(__name__)
BREACH = "the driver is idle"  # prefix of the log message about leftover scheduler state


class OpenRuns:
    """The runs that are open or have unfinished groups.

    `wake` makes the loop check the scheduler for work.
    """

    def __init__(
        self, scheduler: Scheduler, flights: Flights, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self.scheduler = scheduler
        self.flights = flights
        self.clock = clock
        self.wake = wake
        self.by_group: dict[str, Run] = {}  # by group uid, while the group is unfinished
        self.open: dict[Run, None] = {}  # each run once
        self.standing: list[Observer] = []  # of all runs
        self._failed = False

    @property
    def observers(self) -> list[Observer]:
        """The standing observers, and the observers of each open run."""
        own = (observer for run in self.open for observer in run.own_observers)
        return [*self.standing, *own]

    def close_all(self) -> None:
        """Closes every run."""
        for run in list(self.open):
            run.close()

    def fail(self, error: RolloutError) -> None:
        """Ends every run with an error, because the driver has ended."""
        self._failed = True
        for run in self.open:
            run.fail(error)

    def check(self) -> None:
        """Logs an error if the driver is idle and the scheduler still holds state: a defect."""
        if self.by_group or self.flights or self._failed:
            return
        for breach in self.scheduler.check():
            logger.error("%s, but %s", BREACH, breach)
