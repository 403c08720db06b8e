"""The published order (paper section 2): probes first, then the groups expected to be the longest.

The first request of a group is its probe. A probe that ends early moves the rest of its group to
the back. Until a request of a group ends, the group's estimate is the maximum response length. The
paper leaves two cases open; the rules here were measured (docs/simulator.md):

- All groups without a known length are equal: among their requests, the one with the fewest tokens
  goes first. This keeps a request that may turn out to be the longest from falling behind.
- A request that is longer than every finished sibling is past its group's estimate. It goes before
  all groups with a known length, longest first.
"""

from collections.abc import Callable

from typing_extensions import override

from seer_sgl.types import Group, Request

from .lengths import GroupLengths, KnownLengths
from .policy import GUARD_EVERY, Policy
from .updatable_queue import UpdatableQueue


class ContextAware(Policy):
    """The policy `seer_published`. A group with `known` lengths of an earlier rollout needs no
    probe."""

    def __init__(
        self, known: KnownLengths | None = None, *, guard_every: int = GUARD_EVERY
    ) -> None:
        super().__init__(guard_every)
        self._known = known
        self._probes: UpdatableQueue[Request] = UpdatableQueue()  # shortest first
        self._unknown: UpdatableQueue[Request] = UpdatableQueue()  # fewest tokens first
        self._past_estimate: UpdatableQueue[Request] = UpdatableQueue()  # most tokens first
        self._groups: dict[str, _Group] = {}  # by uid
        self._queue: UpdatableQueue[_Group] = UpdatableQueue()  # longest estimate first

    @override
    def push(self, request: Request) -> None:
        super().push(request)
        group = self._group_of(request)
        if request.index == 0 and not group.lengths.known:
            self._probes.put(request, request.generated, request.order)
        else:
            group.ready.put(request, request.order)
            self._list_alone(request, group)
        self._list(group)

    @override
    def take_out(self, request: Request) -> None:
        super().take_out(request)
        for queue in (self._probes, self._unknown, self._past_estimate):
            queue.remove(request)
        group = self._groups.get(request.group.uid)
        if group is not None:
            group.ready.remove(request)

    @override
    def _first_in_order(self) -> Request | None:
        return (
            self._probes.first()
            or self._first(self._unknown, lambda request, group: group.lengths.unknown)
            or self._first(self._past_estimate, _is_past_estimate)
            or self._longest()
        )

    @override
    def finished(self, request: Request) -> None:
        group = self._groups.get(request.group.uid)
        if group is None:
            return
        was_unknown, before = group.lengths.unknown, group.lengths.estimate
        group.lengths.ended(request)
        if was_unknown or group.lengths.estimate < before:
            for ready in group.ready:
                self._list_alone(ready, group)
        self._list(group)

    @override
    def withdraw(self, group: Group) -> None:
        super().withdraw(group)
        forgotten = self._groups.pop(group.uid, None)
        if forgotten is not None:
            self._queue.remove(forgotten)

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
            self._queue.put(group, -estimate, group.order)

    def _list_alone(self, request: Request, group: "_Group") -> None:
        """Queues a request by its own length if its group's estimate does not apply to it.

        The request also stays in its group's queue: the group may get an estimate, or a larger one.
        """
        if group.lengths.unknown:
            self._unknown.put(request, request.generated, request.order)
        elif _is_past_estimate(request, group):
            self._past_estimate.put(request, -request.generated, request.order)

    def _first(
        self, queue: UpdatableQueue[Request], belongs: Callable[[Request, "_Group"], bool]
    ) -> Request | None:
        """Returns the first request of a queue that still belongs there."""
        while (request := queue.first()) is not None:
            if belongs(request, self._group_of(request)):
                return request
            queue.remove(request)
        return None

    def _longest(self) -> Request | None:
        """Returns the oldest request of the group with the longest estimate."""
        while (group := self._queue.first()) is not None:
            request = group.ready.first()
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
        self.ready: UpdatableQueue[Request] = UpdatableQueue()  # oldest submission first
        self.listed_at: int | None = None  # the estimate by which the queue has it
