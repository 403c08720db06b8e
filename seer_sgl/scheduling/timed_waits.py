"""Requests that wait for something, and no longer than until a time."""

from collections.abc import Iterator

from seer_sgl.types import Request

from .updatable_queue import UpdatableQueue


class TimedWaits:
    """Requests that each wait until their own time; every method costs O(log n) amortised."""

    def __init__(self) -> None:
        self._until: dict[Request, float] = {}
        self._queue: UpdatableQueue[Request] = UpdatableQueue()  # earliest end first

    def __contains__(self, request: Request) -> bool:
        return request in self._until

    def __iter__(self) -> Iterator[Request]:
        return iter(self._until)

    @property
    def next_due(self) -> float | None:
        """The earliest end of a wait, seconds; None if no request waits."""
        first = self._queue.first()
        return None if first is None else self._until[first]

    def add(self, request: Request, until: float) -> None:
        """Adds a request that waits at most until the time `until`."""
        self._until[request] = until
        self._queue.put(request, until)

    def leave(self, request: Request) -> bool:
        """Removes a request. Returns whether it waited."""
        self._queue.remove(request)
        return self._until.pop(request, None) is not None

    def due(self, now: float) -> Iterator[Request]:
        """Removes and yields the requests whose wait has ended."""
        while (first := self._queue.first()) is not None and self._until[first] <= now:
            self.leave(first)
            yield first
