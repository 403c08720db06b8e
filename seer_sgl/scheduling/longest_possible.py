"""The order of the most tokens that a request may still get, first.

It replaces the probes and estimates of the paper (context_aware.py). Each group has a posterior of
its lengths (posterior.py). A group ranks by the tokens that its request with the fewest tokens
still gets with a probability of one in a thousand, up to the maximum response length; within a
group, that request goes first. So a group of which nothing is known ranks like one that reaches the
limit, all groups advance together at first, and a group falls behind once its responses show that
none of them will be among the longest. Groups of equal rank take turns, so that all are known
sooner. Tokens that a request was given do not count: only what is still to come does.
"""

from typing_extensions import override

from seer_sgl.types import Group, Request

from .lengths import KnownLengths
from .policy import GUARD_EVERY, Policy
from .posterior import LengthPosterior, Spread
from .updatable_queue import UpdatableQueue

CHANCE = 0.001


class LongestPossible(Policy):
    """The policy `seer`. `known`: lengths of earlier rollouts, which count as if their
    responses were of this one."""

    def __init__(
        self, known: KnownLengths | None = None, *, guard_every: int = GUARD_EVERY
    ) -> None:
        super().__init__(guard_every)
        self._known = known
        self._spread = Spread()
        self._groups: dict[str, _Group] = {}  # by uid
        self._queue: UpdatableQueue[_Group] = UpdatableQueue()

    @override
    def push(self, request: Request) -> None:
        super().push(request)
        group = self._group_of(request)
        group.ready.put(request, request.sampled, request.order)
        if request.sampled:
            group.posterior.reached(request.index, request.sampled)
        if request.sampled or group.ranked_for != 0:  # else its rank stays
            self._rank(group)

    @override
    def _first_in_order(self) -> Request | None:
        while (group := self._queue.first()) is not None:
            request = group.ready.first()
            if request is not None and request.sampled == group.ranked_for:
                return request
            self._rank(group)
        return None

    @override
    def pop(self) -> Request:
        request = super().pop()
        group = self._groups[request.group.uid]
        group.taken += 1
        self._rank(group)
        return request

    @override
    def take_out(self, request: Request) -> None:
        super().take_out(request)
        group = self._groups.get(request.group.uid)
        if group is not None:
            group.ready.remove(request)

    @override
    def finished(self, request: Request) -> None:
        group = self._groups.get(request.group.uid)
        if group is not None:
            group.posterior.ended(request.index, request.sampled)
            self._rank(group)

    @override
    def withdraw(self, group: Group) -> None:
        super().withdraw(group)
        forgotten = self._groups.pop(group.uid, None)
        if forgotten is not None:
            forgotten.posterior.close()
            self._queue.remove(forgotten)

    def _group_of(self, request: Request) -> "_Group":
        uid = request.group.uid
        if uid not in self._groups:
            posterior = LengthPosterior(request.group.sampling.max_new_tokens, self._spread)
            past = {} if self._known is None else self._known.of(request.group)
            for length in past.values():
                posterior.ended(None, length)
            self._groups[uid] = _Group(request.group.requests[0].order, posterior)
        return self._groups[uid]

    def _rank(self, group: "_Group") -> None:
        """Puts the group into the queue by what its first ready request may still get."""
        request = group.ready.first()
        if request is None:
            self._queue.remove(group)
            group.ranked_for = None
            return
        possible = group.posterior.possible(request.sampled, CHANCE)
        group.ranked_for = request.sampled
        self._queue.put(group, request.sampled - possible, group.taken, group.order)


class _Group:
    """The policy's record of a group."""

    def __init__(self, order: int, posterior: LengthPosterior) -> None:
        self.order = order
        self.taken = 0  # picks of its requests
        self.posterior = posterior
        self.ready: UpdatableQueue[Request] = UpdatableQueue()  # fewest tokens first
        self.ranked_for: int | None = None  # the tokens of the request by which it ranks
