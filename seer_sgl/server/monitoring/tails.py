"""The tails of rollouts: the time spent on the last 10 % of the requests (report.TAIL_SHARE)."""

from array import array
from collections.abc import Callable

import msgspec

from seer_sgl.report.report import before_tail, tail_begin
from seer_sgl.server.generation import CALLER


class RolloutProgress(msgspec.Struct):
    """A rollout in progress. `submitted`: its requests without those that were given up with their
    group; `finished`: when some of them finished, ascending."""

    caller: str
    name: str
    submitted: int = 0
    finished: "array[float]" = msgspec.field(default_factory=lambda: array("d"))

    def tail_s(self, now: float) -> float:
        """Returns the seconds of its tail so far; 0 before it."""
        needed = before_tail(self.submitted)
        in_tail = needed <= len(self.finished) < self.submitted
        return now - self.finished[needed - 1] if in_tail else 0.0


class Tails:
    """The rollouts in progress, by the driver's caller, the first one first.

    `record` receives the seconds of the tail of each rollout that ends in it or after it. Single
    requests have no tail.
    """

    def __init__(self, record: Callable[[float], object]) -> None:
        self._record = record
        self.rollouts: dict[str, RolloutProgress] = {}

    def submitted(self, caller: str, requests: int, name: str) -> None:
        """Adds requests of a caller. `name`: of the rollout, for people."""
        if caller != CALLER:
            rollout = self.rollouts.setdefault(caller, RolloutProgress(caller, name))
            rollout.submitted += requests

    def finished(self, caller: str, now: float) -> None:
        if caller in self.rollouts:
            self.rollouts[caller].finished.append(now)

    def gave_up(self, caller: str, requests: int) -> None:
        """Removes unfinished requests whose group was given up."""
        if caller in self.rollouts:
            self.rollouts[caller].submitted -= requests

    def ended(self, caller: str) -> None:
        rollout = self.rollouts.pop(caller, None)
        if rollout is not None and len(rollout.finished) >= before_tail(rollout.submitted):
            self._record(rollout.finished[-1] - tail_begin(rollout.finished, rollout.submitted))

    def longest_s(self, now: float) -> float:
        """Returns the seconds since a rollout is in its tail, at most over all; 0 without any."""
        return max((rollout.tail_s(now) for rollout in self.rollouts.values()), default=0.0)
