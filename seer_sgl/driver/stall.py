"""Two clocks of the monitor: when an engine is stuck, and when one that is out is tried again."""

from typing import Any

# The server of an engine that is out for so many `stall_timeout_s` is restarted. That is long,
# because a start takes minutes, and a busy machine may only be slow.
HUNG_AFTER = 4


class StallClock:
    """Detects that an engine with work has not moved for `timeout_s`. Pure."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._mark: tuple[Any, ...] | None = None
        self._since = 0.0
        self._idle = True  # at the last call

    def stalled(self, now: float, inflight: int, mark: tuple[Any, ...]) -> bool:
        """Returns whether the engine is stuck.

        `mark`: counters and returned chunks; it changes whenever the engine makes progress.
        """
        # Work that was sent since the last call is not older than this call: polls may take long.
        if inflight == 0 or self._idle or mark != self._mark:
            self._mark, self._since = mark, now
        self._idle = inflight == 0
        return now - self._since >= self._timeout_s


class Readmission:
    """The backoff before an engine that is out is tried again. Pure.

    The first try is immediate. The pauses then double, up to `most_s`, while the engine passes its
    health check but serves nothing.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._tries = 0  # since a chunk last returned tokens
        self._at = 0.0  # the time of the last try

    def due(self, now: float, trouble: str) -> bool:
        """Returns whether the next try is due.

        `trouble`: why the engine's newest chunk returned no tokens; empty if it returned some.
        """
        if not trouble:
            self._tries = 0
        pause = self._first_s * float(2**self._tries - 1)
        return now - self._at >= min(pause, self._most_s)

    def tried(self, now: float) -> None:
        """Records that the engine is available again."""
        self._tries, self._at = min(self._tries + 1, 30), now
