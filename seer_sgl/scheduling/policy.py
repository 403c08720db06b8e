"""Which request goes next."""

import heapq
from typing import Protocol

from seer_sgl.types import Request


class Policy(Protocol):
    """The order of the ready requests. In-flight requests are never in it."""

    def push(self, request: Request) -> None:
        """The request is ready for its next chunk."""

    def peek(self) -> Request | None:
        """The request that should go next, left in place; None when nothing is ready."""

    def pop(self) -> Request:
        """Take out the request that `peek` shows."""


class FirstComeFirstServed:
    """Oldest submission first; between chunks a request keeps its place in the order."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, Request]] = []

    def push(self, request: Request) -> None:
        """The request is ready for its next chunk."""
        heapq.heappush(self._ready, (request.order, request))

    def peek(self) -> Request | None:
        """The oldest ready request."""
        return self._ready[0][1] if self._ready else None

    def pop(self) -> Request:
        """Take out the oldest ready request."""
        return heapq.heappop(self._ready)[1]
