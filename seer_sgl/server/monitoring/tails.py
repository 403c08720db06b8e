"""The tails of rollouts: the time spent on the last 10 % of the requests (report.TAIL_SHARE)."""

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from seer_sgl.report.report import before_tail, tail_begin
from seer_sgl.server.generation import CALLER


class RolloutProgress(NamedTuple):
    """A rollout in progress: requests, and the seconds of its tail so far (0: not reached)."""

    caller: str
    name: str
    submitted: int
    finished: int
    tail_s: float


class Tails:
    """The rollouts in progress, by the driver's caller.

    `record` receives the seconds of the tail of each rollout that ends. Single requests have no
    tail.
    """

    def __init__(self, record: Callable[[float], object]) -> None:
        self._record = record
        self._names: dict[str, str] = {}  # by caller
        self._submitted: dict[str, int] = {}  # requests, by caller
        self._finished: dict[str, array[float]] = {}  # when, ascending

    @property
    def rollouts(self) -> int:
        """The number of rollouts in progress."""
        return len(self._submitted)

    def submitted(self, caller: str, requests: int, name: str) -> None:
        """Adds requests of a caller. `name`: of the rollout, for people."""
        if caller != CALLER:
            self._names.setdefault(caller, name)
            self._submitted[caller] = self._submitted.get(caller, 0) + requests

    def finished(self, caller: str, now: float) -> None:
        """Adds a finished request."""
        if caller in self._submitted:
            self._finished.setdefault(caller, array("d")).append(now)

    def ended(self, caller: str) -> None:
        """Ends a rollout."""
        self._names.pop(caller, None)
        self._submitted.pop(caller, None)
        finished = self._finished.pop(caller, None)
        if finished:
            self._record(finished[-1] - tail_begin(finished))

    def longest_s(self, now: float) -> float:
        """Returns the seconds since a rollout is in its tail, at most over all; 0 without any."""
        return max((rollout.tail_s for rollout in self.progress(now)), default=0.0)

    def progress(self, now: float) -> Iterator[RolloutProgress]:
        """Yields the rollouts in progress, the first one first."""
        for caller, submitted in self._submitted.items():
            finished = self._finished.get(caller, array("d"))
            needed = before_tail(submitted)
            in_tail = needed <= len(finished) < submitted
            tail_s = now - finished[needed - 1] if in_tail else 0.0
            yield RolloutProgress(caller, self._names[caller], submitted, len(finished), tail_s)
