"""Which request goes next: the protocol, and policies that look at one request at a time."""

import heapq
from collections.abc import Callable
from typing import Protocol

from seer_sgl.types import Group, Request

from .ready import ReadySet, Ticket


class Policy(Protocol):
    """The order of the ready requests. In-flight and finished requests are never in it."""

    def push(self, request: Request) -> None:
        """The request is ready for its next chunk."""

    def peek(self) -> Request | None:
        """The request that should go next, left in place; None when nothing is ready."""

    def pop(self) -> Request:
        """Take out the request that `peek` shows."""

    def take_out(self, request: Request) -> None:
        """Forget the request, if it is ready."""

    def finished(self, request: Request) -> None:
        """The request, which is not among the ready, is complete."""

    def withdraw(self, group: Group) -> None:
        """Forget the group: it is complete, or nothing of it goes any more."""


class Ranked:
    """Lowest `rank` first; a request's rank holds from its push on. Ranks of two requests that
    are equal are decided by the order of submission."""

    def __init__(self, rank: Callable[[Request], int]) -> None:
        self._rank = rank
        self._ready = ReadySet()
        self._queue: list[tuple[int, int, Ticket, Request]] = []

    def push(self, request: Request) -> None:
        """The request is ready for its next chunk."""
        ticket = self._ready.add(request)
        heapq.heappush(self._queue, (self._rank(request), request.order, ticket, request))

    def peek(self) -> Request | None:
        """The ready request of the lowest rank."""
        while self._queue:
            _, _, ticket, request = self._queue[0]
            if self._ready.valid(request, ticket):
                return request
            heapq.heappop(self._queue)
        return None

    def pop(self) -> Request:
        """Take out the request that `peek` shows."""
        request = self.peek()
        if request is None:
            raise IndexError("nothing is ready")
        heapq.heappop(self._queue)
        self._ready.discard(request)
        return request

    def take_out(self, request: Request) -> None:
        """Forget the request, if it is ready."""
        self._ready.discard(request)

    def finished(self, request: Request) -> None:
        """A request is complete; the rank of the others does not depend on it."""

    def withdraw(self, group: Group) -> None:
        """Forget the group's ready requests."""
        for request in group.requests:
            self._ready.discard(request)


class FirstComeFirstServed(Ranked):
    """Oldest submission first; between chunks a request keeps its place in the order."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.order)


class LongestRemaining(Ranked):
    """The oracle: most tokens to go first. `true_length`: of the whole response, tokens."""

    def __init__(self, true_length: Callable[[Request], int]) -> None:
        super().__init__(lambda request: request.generated - true_length(request))
