"""Requests that wait for something, and no longer than until a time."""

import heapq
import itertools
from collections.abc import Iterator

from seer_sgl.types import Request


class TimedWaits:
    """Requests that each wait until their own time; every method costs O(log n) amortised."""

    def __init__(self) -> None:
        self._waiting: dict[Request, int] = {}  # to the turn of its entry
        # (until, turn, request); an entry is void once its request has left.
        self._queue: list[tuple[float, int, Request]] = []
        self._turns = itertools.count()

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting

    @property
    def next_due(self) -> float | None:
        """The earliest end of a wait, seconds; None if no request waits."""
        self._drop_void()
        return self._queue[0][0] if self._queue else None

    def add(self, request: Request, until: float) -> None:
        """Adds a request that waits at most until the time `until`."""
        turn = next(self._turns)
        self._waiting[request] = turn
        heapq.heappush(self._queue, (until, turn, request))

    def leave(self, request: Request) -> bool:
        """Removes a request. Returns whether it waited."""
        return self._waiting.pop(request, None) is not None

    def due(self, now: float) -> Iterator[Request]:
        """Removes and yields the requests whose wait has ended."""
        while (until := self.next_due) is not None and until <= now:
            _, _, request = heapq.heappop(self._queue)
            del self._waiting[request]
            yield request

    def _drop_void(self) -> None:
        while self._queue:
            _, turn, request = self._queue[0]
            if self._waiting.get(request) == turn:
                return
            heapq.heappop(self._queue)
