"""When a process that ended is restarted, and when it is not: backoff and quarantine. Pure."""

from collections import deque
from typing import NamedTuple

from seer_sgl.timing import DEFAULT

STABLE_S = 60.0  # a process that ran for this long is as good as a new one
MOST_FAILURES = 5  # in a row; then it stays down
# Processes that end within this time of each other end for one reason outside of them.
TOGETHER_S = 5.0
REMEMBERED_S = 3600.0  # how long an end can be compared with others


class Incidents:
    """The recent ends of all processes of one kind.

    They show whether one process failed, or most of them at once.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()  # of all processes
        self._ends: deque[tuple[float, str]] = deque()

    def ended(self, name: str, now: float) -> None:
        """Records that a process that had been ready ended."""
        self._ends.append((now, name))
        while self._ends[0][0] < now - REMEMBERED_S:
            self._ends.popleft()

    def correlated(self, at: float) -> bool:
        """Returns whether most processes, and more than one, ended around the time `at`."""
        ended = {name for when, name in self._ends if abs(when - at) <= TOGETHER_S} & self.names
        return len(ended) >= 2 and 2 * len(ended) > len(self.names)


class _Failure(NamedTuple):
    """`ready`, `own`: as in `Restarts.ended`."""

    at: float
    ready: bool
    own: bool


class Restarts:
    """The starts of one process. Times are seconds on the caller's clock.

    It is restarted at once, then after pauses that double, up to `most_s`. After MOST_FAILURES
    in a row it is quarantined: it stays down. An end that it shares with most others of its kind
    does not count, nor does a delayed start; an end STABLE_S after the start begins a new row.
    """

    def __init__(
        self, name: str, incidents: Incidents, most_s: float = DEFAULT.restart_most_s
    ) -> None:
        self.name = name
        self.count = 0  # of starts after the first
        self.quarantine: str | None = None  # why it stays down
        self.down = False  # its end or absence was recorded, and no start since
        self.reason = ""  # of its end or absence, the last time
        self._incidents = incidents
        self._most_s = most_s
        self._row: deque[_Failure] = deque(maxlen=MOST_FAILURES)
        self._started_at: float | None = None  # None: never, as far as is known
        incidents.names.add(name)

    def absent(self, reason: str) -> None:
        """Records that it was never started, which is no failure."""
        self.down, self.reason = True, reason

    def ended(self, reason: str, now: float, *, ready: bool = True, own: bool = True) -> None:
        """Records its end. `ready`: it had worked; else it failed to start. `own`: it is the cause
        itself; else its start had no place, or lost it."""
        if ready and (self._started_at is None or now - self._started_at >= STABLE_S):
            self._row.clear()
        self._row.append(_Failure(now, ready, own))
        self.down, self.reason = True, reason
        if ready:
            self._incidents.ended(self.name, now)

    def due(self, now: float) -> bool:
        """Returns whether it is to be started now; decides on the quarantine."""
        if not self.down or self.quarantine is not None:
            return False
        if self._row and now - self._row[-1].at < self._pause:
            return False
        failures = sum(
            failure.own and not (failure.ready and self._incidents.correlated(failure.at))
            for failure in self._row
        )
        if failures < MOST_FAILURES:
            return True
        self.quarantine = f"it failed {failures} times in a row; the last time: {self.reason}"
        self._incidents.names.discard(self.name)
        return False

    def started(self, now: float) -> None:
        """Records that it was restarted."""
        self.count += 1
        self.down, self._started_at = False, now

    def ready(self, now: float) -> None:
        """Records that it works from now on, if its start took a while."""
        self._started_at = now

    @property
    def _pause(self) -> float:
        doublings = len(self._row) - 2
        return 0.0 if doublings < 0 else min(float(2**doublings), self._most_s)
