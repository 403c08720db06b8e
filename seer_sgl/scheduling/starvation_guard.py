"""What policies share that rank a request by its group: the guard against starvation."""

from abc import ABC, abstractmethod

from seer_sgl.types import Request

from .ready import ReadySet

# To prevent starvation, every 64th pick takes the longest-waiting request (the paper:
# "occasionally"). With q others waiting, a request is picked within GUARD_EVERY * (q + 1) picks.
GUARD_EVERY = 64


class StarvationGuard(ABC):
    """An order of ready requests, of which every `guard_every`-th pick takes the oldest."""

    def __init__(self, guard_every: int) -> None:
        self._guard_every = guard_every
        self._taken = 0
        self._ready = ReadySet()

    def peek(self) -> Request | None:
        """Returns the next request without removing it; None if no request is ready."""
        if self._ready and (self._taken + 1) % self._guard_every == 0:
            return self._ready.longest_waiting
        return self._first_in_order()

    def pop(self) -> Request:
        """Removes and returns the request that `peek` returns. Raises IndexError if it is None."""
        request = self.peek()
        if request is None:
            raise IndexError("nothing is ready")
        self._ready.discard(request)
        self._taken += 1
        return request

    def take_out(self, request: Request) -> None:
        """Removes the request if it is ready."""
        self._ready.discard(request)

    @abstractmethod
    def _first_in_order(self) -> Request | None:
        """Returns the first ready request of the order; None if there is none."""
