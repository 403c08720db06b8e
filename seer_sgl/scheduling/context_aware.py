"""The published order (paper section 2): probes first, then the groups expected to be the longest.

The first request of a group is its probe. A probe that ends early moves the rest of its group to
the back. Until a request of a group ends, the group's estimate is the maximum response length. The
paper leaves two cases open; the rules here were measured (docs/simulator.md):

- All groups without a known length are equal: among their requests, the one with the fewest tokens
  goes first. This keeps a request that may turn out to be the longest from falling behind.
- A request that is longer than every finished sibling is past its group's estimate. It goes before
  all groups with a known length, longest first.
"""

import heapq
from collections.abc import Callable

from typing_extensions import override

from seer_sgl.types import Group, Request

from .lengths import GroupLengths, KnownLengths
from .ready import ReadySet, Ticket
from .starvation_guard import GUARD_EVERY, StarvationGuard
from .updatable_queue import MOST_VOID, UpdatableQueue


class ContextAware(StarvationGuard):
    """The policy `seer_published`. A group with `known` lengths of an earlier rollout needs no
    probe."""

    def __init__(
        self, known: KnownLengths | None = None, *, guard_every: int = GUARD_EVERY
    ) -> None:
        super().__init__(guard_every)
        self._known = known
        self._probes: list[tuple[int, int, Ticket, Request]] = []  # shortest first
        self._unknown: list[tuple[int, int, Ticket, Request]] = []  # fewest tokens first
        self._past_estimate: list[tuple[int, int, Ticket, Request]] = []  # most tokens first
        self._groups: dict[str, _Group] = {}  # by uid
        self._queue: UpdatableQueue[_Group] = UpdatableQueue()  # longest estimate first

    def push(self, request: Request) -> None:
        """Adds a request that is ready for its next chunk."""
        group = self._group_of(request)
        ticket = self._ready.add(request)
        if request.index == 0 and not group.lengths.known:
            heapq.heappush(self._probes, (request.generated, request.order, ticket, request))
        else:
            heapq.heappush(group.ready, (request.order, ticket, request))
            self._list_alone(request, ticket, group)
        self._list(group)

    @override
    def _first_in_order(self) -> Request | None:
        return (
            self._first(self._probes, lambda *_: True)
            or self._first(self._unknown, lambda request, group: group.lengths.unknown)
            or self._first(self._past_estimate, _is_past_estimate)
            or self._longest()
        )

    def finished(self, request: Request) -> None:
        """Updates the estimate of the group with a complete request."""
        group = self._groups.get(request.group.uid)
        if group is None:
            return
        was_unknown, before = group.lengths.unknown, group.lengths.estimate
        group.lengths.ended(request)
        if was_unknown or group.lengths.estimate < before:
            for _, ticket, ready in group.ready:
                self._list_alone(ready, ticket, group)
        self._list(group)

    def withdraw(self, group: Group) -> None:
        """Removes a group that is complete or given up."""
        forgotten = self._groups.pop(group.uid, None)
        if forgotten is not None:
            self._queue.remove(forgotten)
        for request in group.requests:
            self._ready.discard(request)
        self._drop_void()

    def _drop_void(self) -> None:
        """Rebuilds queues of mostly void entries. An entry that never reaches the front of its
        queue would keep its request in memory."""
        for queue in (self._probes, self._unknown, self._past_estimate):
            if len(queue) > MOST_VOID + 2 * len(self._ready):
                queue[:] = [entry for entry in queue if self._ready.valid(entry[3], entry[2])]
                heapq.heapify(queue)

    def _group_of(self, request: Request) -> "_Group":
        uid = request.group.uid
        if uid not in self._groups:
            self._groups[uid] = _Group(request.group, GroupLengths(request.group, self._known))
        return self._groups[uid]

    def _list(self, group: "_Group") -> None:
        """Puts the group into the queue by its current estimate, unless it is there already."""
        estimate = group.lengths.estimate
        if group.ready and not group.lengths.unknown and estimate != group.listed_at:
            group.listed_at = estimate
            self._queue.put(group, (-estimate, group.order))

    def _list_alone(self, request: Request, ticket: Ticket, group: "_Group") -> None:
        """Queues a request by its own length if its group's estimate does not apply to it.

        The request also stays in its group's queue: the group may get an estimate, or a larger one.
        """
        if group.lengths.unknown:
            entry = (request.generated, request.order, ticket, request)
            heapq.heappush(self._unknown, entry)
        elif _is_past_estimate(request, group):
            entry = (-request.generated, request.order, ticket, request)
            heapq.heappush(self._past_estimate, entry)

    def _first(
        self,
        queue: list[tuple[int, int, Ticket, Request]],
        belongs: Callable[[Request, "_Group"], bool],
    ) -> Request | None:
        """Returns the first request of a queue that is still ready and still belongs there."""
        while queue:
            _, _, ticket, request = queue[0]
            if self._ready.valid(request, ticket) and belongs(request, self._group_of(request)):
                return request
            heapq.heappop(queue)
        return None

    def _longest(self) -> Request | None:
        """Returns the oldest request of the group with the longest estimate."""
        while (group := self._queue.first()) is not None:
            request = group.oldest(self._ready)
            if request is not None:
                return request
            group.listed_at = None
            self._queue.remove(group)
        return None


def _is_past_estimate(request: Request, group: "_Group") -> bool:
    return request.generated >= group.lengths.estimate


class _Group:
    """The policy's record of a group: its lengths, and its ready requests except the probe."""

    def __init__(self, group: Group, lengths: GroupLengths) -> None:
        self.lengths = lengths
        self.order = group.requests[0].order
        self.ready: list[tuple[int, Ticket, Request]] = []  # oldest submission first
        self.listed_at: int | None = None  # the estimate by which the queue has it

    def oldest(self, ready: ReadySet) -> Request | None:
        """Returns the oldest ready request; None if there is none."""
        while self.ready:
            _, ticket, request = self.ready[0]
            if ready.valid(request, ticket):
                return request
            heapq.heappop(self.ready)
        return None
