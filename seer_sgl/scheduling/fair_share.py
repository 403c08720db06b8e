"""Several callers on one fleet: each has its own order and an equal number of chunks in flight.

An engine divides its steps among the chunks in flight, so callers with equal numbers of chunks get
equal token rates. A caller with little work leaves its share to the others.
"""

from collections.abc import Callable

from seer_sgl.types import Group, Request

from .policy import Policy


class FairShare:
    """One policy per caller. Among callers with ready requests, the caller with the fewest chunks
    in flight goes next; ties: the longest-waiting caller. A single caller costs one dictionary
    lookup.

    `make_policy` creates the policy of a new caller.
    """

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy = make_policy
        self._callers: dict[str, _Caller] = {}
        self._turn = 0
        self._next: _Caller | None = None  # the caller of the request that `peek` returned

    @property
    def callers(self) -> int:
        """The number of callers with a group or a chunk in flight."""
        return len(self._callers)

    def push(self, request: Request) -> None:
        """Adds a request that is ready for its next chunk."""
        self._caller(request.group).policy_of(request.group).push(request)

    def peek(self) -> Request | None:
        """Returns the next request without removing it; None if no request is ready."""
        first: Request | None = None
        self._next = None
        for caller in self._callers.values():
            if self._next is None or caller.mark < self._next.mark:
                request = caller.peek()
                if request is not None:
                    first, self._next = request, caller
        return first

    def pop(self) -> Request:
        """Removes and returns the request that `peek` last returned. Raises IndexError if `peek`
        returned None."""
        if self._next is None:
            raise IndexError("nothing is ready")
        self._turn += 1
        self._next.turn = self._turn
        return self._next.pop()

    def take_out(self, request: Request) -> None:
        """Removes the request if it is ready."""
        self._caller(request.group).policy_of(request.group).take_out(request)

    def started(self, request: Request) -> None:
        """Counts a chunk of the request as in flight."""
        self._caller(request.group).inflight += 1

    def ended(self, request: Request) -> None:
        """Counts that chunk as returned."""
        caller = self._caller(request.group)
        caller.inflight -= 1
        self._forget(request.group, caller)

    def finished(self, request: Request) -> None:
        """Reports a complete request, which was in flight, to its caller's policy."""
        self._caller(request.group).policy_of(request.group).finished(request)

    def join(self, group: Group) -> None:
        """Adds a group of its caller."""
        self._caller(group).groups += 1

    def prefer(self, group: Group) -> None:
        """Puts requests of the group, from the next `push` on, before its caller's other groups.

        None of its requests may be ready now.
        """
        self._caller(group).prefer(group)

    def leave(self, group: Group) -> None:
        """Removes a group that is complete or given up."""
        caller = self._caller(group)
        caller.withdraw(group)
        caller.groups -= 1
        self._forget(group, caller)

    def _caller(self, group: Group) -> "_Caller":
        caller = self._callers.get(group.caller)
        if caller is None:
            caller = self._callers[group.caller] = _Caller(self._make_policy, self._turn)
        return caller

    def _forget(self, group: Group, caller: "_Caller") -> None:
        if not caller.groups and not caller.inflight:
            self._callers.pop(group.caller, None)


class _Caller:
    """The state of a caller. `turn`: when it was last served.

    Its preferred groups have a policy of their own, whose requests go first.
    """

    def __init__(self, make_policy: Callable[[], Policy], turn: int) -> None:
        self._make_policy = make_policy
        self._policy = make_policy()
        self._ahead: Policy | None = None  # of the preferred groups
        self._preferred: set[str] = set()  # their uids
        self.turn = turn
        self.inflight = 0
        self.groups = 0

    def policy_of(self, group: Group) -> Policy:
        """Returns the policy that orders the group's requests."""
        if self._ahead is None or group.uid not in self._preferred:
            return self._policy
        return self._ahead

    def peek(self) -> Request | None:
        """Returns its next request without removing it; None if no request is ready."""
        ahead = None if self._ahead is None else self._ahead.peek()
        return self._policy.peek() if ahead is None else ahead

    def pop(self) -> Request:
        """Removes and returns the request that `peek` returns. Raises IndexError if it is None."""
        if self._ahead is not None and self._ahead.peek() is not None:
            return self._ahead.pop()
        return self._policy.pop()

    def prefer(self, group: Group) -> None:
        """Moves the group to the policy that goes first."""
        if group.uid in self._preferred:
            return
        self._policy.withdraw(group)
        self._ahead = self._ahead or self._make_policy()
        self._preferred.add(group.uid)

    def withdraw(self, group: Group) -> None:
        """Removes a group that is complete or given up."""
        self.policy_of(group).withdraw(group)
        self._preferred.discard(group.uid)

    @property
    def mark(self) -> tuple[int, int]:
        """The sort key: the caller with the least mark goes next."""
        return self.inflight, self.turn
