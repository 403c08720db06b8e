"""The order of requests: the protocol, and policies that rank each request on its own."""

import heapq
from collections.abc import Callable
from typing import Protocol

from seer_sgl.types import Group, Request

from .ready import ReadySet, Ticket


class Policy(Protocol):
    """The order of the ready requests. It never contains in-flight or finished requests."""

    def push(self, request: Request) -> None:
        """Adds a request that is ready for its next chunk."""

    def peek(self) -> Request | None:
        """Returns the next request without removing it; None if no request is ready."""

    def pop(self) -> Request:
        """Removes and returns the request that `peek` returns. Raises IndexError if it is None."""

    def take_out(self, request: Request) -> None:
        """Removes the request if it is ready."""

    def finished(self, request: Request) -> None:
        """Updates the order after a request is complete. The request is not ready."""

    def withdraw(self, group: Group) -> None:
        """Removes a group that is complete or given up."""


class Ranked:
    """Lowest `rank` first; ties: the order of submission. A request's rank is fixed at `push`."""

    def __init__(self, rank: Callable[[Request], int]) -> None:
        self._rank = rank
        self._ready = ReadySet()
        self._queue: list[tuple[int, int, Ticket, Request]] = []

    def push(self, request: Request) -> None:
        """Adds a request that is ready for its next chunk."""
        ticket = self._ready.add(request)
        heapq.heappush(self._queue, (self._rank(request), request.order, ticket, request))

    def peek(self) -> Request | None:
        """Returns the request of the lowest rank without removing it; None if none is ready."""
        while self._queue:
            _, _, ticket, request = self._queue[0]
            if self._ready.valid(request, ticket):
                return request
            heapq.heappop(self._queue)
        return None

    def pop(self) -> Request:
        """Removes and returns the request that `peek` returns. Raises IndexError if it is None."""
        request = self.peek()
        if request is None:
            raise IndexError("nothing is ready")
        heapq.heappop(self._queue)
        self._ready.discard(request)
        return request

    def take_out(self, request: Request) -> None:
        """Removes the request if it is ready."""
        self._ready.discard(request)

    def finished(self, request: Request) -> None:
        """Does nothing: ranks do not depend on other requests."""

    def withdraw(self, group: Group) -> None:
        """Removes the group's ready requests."""
        for request in group.requests:
            self._ready.discard(request)


class FirstComeFirstServed(Ranked):
    """Oldest submission first; between chunks a request keeps its place in the order."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.order)


class LongestRemaining(Ranked):
    """The oracle: most remaining tokens first. `true_length`: tokens of the whole response."""

    def __init__(self, true_length: Callable[[Request], int]) -> None:
        super().__init__(lambda request: request.generated - true_length(request))
