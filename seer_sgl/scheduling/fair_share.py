"""Several callers on one fleet: each has its own order, and as many chunks in flight as the others.

Chunks in flight are what an engine divides its steps by: callers with equal numbers of them get
tokens at equal rates. A caller with little work leaves its share to the others.
"""

from collections.abc import Callable

from seer_sgl.types import Group, Request

from .policy import Policy


class FairShare:
    """A policy per caller; of those with ready requests, the one with the fewest chunks in flight
    goes next, and among equals the one that waited longer. One caller costs a dictionary lookup.

    `make_policy` makes the policy of a new caller.
    """

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy = make_policy
        self._callers: dict[str, _Caller] = {}
        self._turn = 0
        self._next: _Caller | None = None  # whose request `peek` showed

    @property
    def callers(self) -> int:
        """How many have a group, or a chunk in flight."""
        return len(self._callers)

    def push(self, request: Request) -> None:
        """The request is ready for its next chunk."""
        self._caller(request.group).policy.push(request)

    def peek(self) -> Request | None:
        """The request that should go next, left in place; None when nothing is ready."""
        first: Request | None = None
        self._next = None
        for caller in self._callers.values():
            if self._next is None or caller.mark < self._next.mark:
                request = caller.policy.peek()
                if request is not None:
                    first, self._next = request, caller
        return first

    def pop(self) -> Request:
        """Take out the request that `peek` showed last. Raises IndexError if it showed none."""
        if self._next is None:
            raise IndexError("nothing is ready")
        self._turn += 1
        self._next.turn = self._turn
        return self._next.policy.pop()

    def take_out(self, request: Request) -> None:
        """Forget a ready request; it need not be one."""
        self._caller(request.group).policy.take_out(request)

    def started(self, request: Request) -> None:
        """A chunk of the request went out."""
        self._caller(request.group).inflight += 1

    def ended(self, request: Request) -> None:
        """That chunk is over."""
        caller = self._caller(request.group)
        caller.inflight -= 1
        self._forget(request.group, caller)

    def finished(self, request: Request) -> None:
        """The request, which was in flight, is complete."""
        self._caller(request.group).policy.finished(request)

    def join(self, group: Group) -> None:
        """A group of the caller begins."""
        self._caller(group).groups += 1

    def leave(self, group: Group) -> None:
        """The group is complete or given up: nothing of it goes any more."""
        caller = self._caller(group)
        caller.policy.withdraw(group)
        caller.groups -= 1
        self._forget(group, caller)

    def _caller(self, group: Group) -> "_Caller":
        caller = self._callers.get(group.caller)
        if caller is None:
            caller = self._callers[group.caller] = _Caller(self._make_policy(), self._turn)
        return caller

    def _forget(self, group: Group, caller: "_Caller") -> None:
        if not caller.groups and not caller.inflight:
            self._callers.pop(group.caller, None)


class _Caller:
    """What is kept of a caller. `turn`: when it was last served."""

    def __init__(self, policy: Policy, turn: int) -> None:
        self.policy = policy
        self.turn = turn
        self.inflight = 0
        self.groups = 0

    @property
    def mark(self) -> tuple[int, int]:
        """The least goes next."""
        return self.inflight, self.turn
