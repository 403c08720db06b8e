"""The order of requests: what all policies share, and those that rank each request on its own."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

from typing_extensions import override

from seer_sgl.types import Group, Request

from .updatable_queue import UpdatableQueue

# To prevent starvation, every 64th pick takes the longest-waiting request (the paper:
# "occasionally"). With q others waiting, a request is picked within GUARD_EVERY * (q + 1) picks.
GUARD_EVERY = 64


class Policy(ABC):
    """The ready requests, in an order that a subclass keeps. In-flight and finished requests are
    never among them.

    `guard_every`: every so many picks, the longest-waiting request is taken instead; None: never.
    """

    def __init__(self, guard_every: int | None = None) -> None:
        self._guard_every = guard_every
        self._taken = 0
        self._ready: OrderedDict[Request, None] = OrderedDict()  # longest waiting first

    def push(self, request: Request) -> None:
        """Adds a request that is ready for its next chunk."""
        self._ready[request] = None

    def peek(self) -> Request | None:
        """Returns the next request without removing it; None if no request is ready."""
        guards = self._guard_every is not None and (self._taken + 1) % self._guard_every == 0
        return next(iter(self._ready), None) if guards else self._first_in_order()

    def pop(self) -> Request:
        """Removes and returns the request that `peek` returns. Raises IndexError if it is None."""
        request = self.peek()
        if request is None:
            raise IndexError("nothing is ready")
        self.take_out(request)
        self._taken += 1
        return request

    def take_out(self, request: Request) -> None:
        """Removes the request if it is ready."""
        self._ready.pop(request, None)

    def withdraw(self, group: Group) -> None:
        """Removes a group that is complete or given up."""
        for request in group.requests:
            self.take_out(request)

    @abstractmethod
    def finished(self, request: Request) -> None:
        """Updates the order after a request is complete. The request is not ready."""

    @abstractmethod
    def _first_in_order(self) -> Request | None:
        """Returns the first ready request of the order; None if there is none."""


class Ranked(Policy):
    """Lowest `rank` first; ties: the order of submission. A request's rank is fixed at `push`."""

    def __init__(self, rank: Callable[[Request], int]) -> None:
        super().__init__()
        self._rank = rank
        self._queue: UpdatableQueue[Request] = UpdatableQueue()

    @override
    def push(self, request: Request) -> None:
        super().push(request)
        self._queue.put(request, self._rank(request), request.order)

    @override
    def take_out(self, request: Request) -> None:
        super().take_out(request)
        self._queue.remove(request)

    @override
    def finished(self, request: Request) -> None:
        return  # ranks do not depend on other requests

    @override
    def _first_in_order(self) -> Request | None:
        return self._queue.first()


class FirstComeFirstServed(Ranked):
    """Oldest submission first; between chunks a request keeps its place in the order."""

    def __init__(self) -> None:
        super().__init__(lambda request: request.order)


class LongestRemaining(Ranked):
    """The oracle: most remaining tokens first. `true_length`: tokens of the whole response."""

    def __init__(self, true_length: Callable[[Request], int]) -> None:
        super().__init__(lambda request: request.generated - true_length(request))
