"""The engines, indexed so that a decision looks at a handful of them and not at all.

Every change of an engine that matters to placement goes through the fleet: O(log engines).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Set

from seer_sgl.types import Request

from .ledger import KVLedger
from .max_tree import ABSENT, MaxTree

UNLIMITED = 1 << 62  # room of an engine without a ledger, or chunks it may have in flight


class EngineSlot:
    """The scheduler's view of one engine.

    `ledger` None: admission by count only (the baseline that retracts). `pool`: the namespace of
    its KV in a pool; engines with equal names read each other's pages. A change of a slot
    that has joined is reported by `EngineIndex.changed`.
    """

    def __init__(
        self,
        engine_id: str,
        ledger: KVLedger | None,
        max_inflight: int,
        pool: str | None = None,
    ) -> None:
        self.engine_id = engine_id
        self.ledger = ledger
        self.max_inflight = max_inflight
        self.pool = pool
        self.inflight = 0
        self.started = 0  # chunks that were sent
        self.completed = 0  # chunks that came back, whatever with
        self.served = 0  # chunks that brought tokens
        self.available = True
        self.leaving = False  # it is never available again
        # Since a chunk last brought tokens: why the newest brought none, and the groups (by uid)
        # that this engine alone has refused.
        self.trouble = ""
        self.refused: set[str] = set()
        self.place = 0  # in the fleet, by time of joining

    @property
    def room(self) -> int:
        """The longest chunk of a group not yet here that can start now, tokens; else ABSENT."""
        if not self.available or self.inflight >= self.max_inflight:
            return ABSENT
        return UNLIMITED if self.ledger is None else self.ledger.room

    def admits(self, request: Request, total_len: int) -> bool:
        """Whether a chunk that grows `request` to `total_len` tokens can start here now."""
        if not self.available or self.inflight >= self.max_inflight:
            return False
        return self.ledger is None or self.ledger.admits(
            request.group.uid, request.prompt_len, total_len
        )


class EngineIndex:
    """All engines in order of joining; iterating gives their slots, available or not.

    An engine that has left is still the home of requests it ran, until one of its name joins.
    """

    def __init__(self) -> None:
        self._slots: list[EngineSlot | None] = []  # by place; None: it left
        self._by_id: dict[str, EngineSlot] = {}
        self._indexed: list[int | None] = []  # inflight if available
        # Engines by chunks in flight, then by place: their room. `_largest_room[k]` is the
        # largest among those with k chunks.
        self._by_inflight: defaultdict[int, MaxTree] = defaultdict(MaxTree)
        self._largest_room = MaxTree()
        self._inflight = Extremes()
        self._holders: dict[str, set[EngineSlot]] = {}  # group uid -> engines that run it

    def __iter__(self) -> Iterator[EngineSlot]:
        return (slot for slot in self._slots if slot is not None)

    def __len__(self) -> int:
        return len(self._slots) - self._slots.count(None)

    def __getitem__(self, engine_id: str) -> EngineSlot:
        return self._by_id[engine_id]

    @property
    def spread(self) -> int:
        """Chunks in flight: the most of an available engine minus the least of one."""
        return self._inflight.most - self._inflight.least

    @property
    def most_inflight(self) -> int:
        """The most chunks in flight on an available engine."""
        return self._inflight.most

    def add(self, slot: EngineSlot) -> None:
        """An engine joins. Raises ValueError for the name of another one that is there."""
        there = self._by_id.get(slot.engine_id)
        if there is not None and self._slots[there.place] is there:
            raise ValueError(f"engine {slot.engine_id} is there already")
        slot.place = len(self._slots)
        self._slots.append(slot)
        self._by_id[slot.engine_id] = slot
        self._indexed.append(None)
        self.changed(slot)

    def remove(self, slot: EngineSlot) -> None:
        """An engine leaves. Raises ValueError while it has chunks in flight."""
        if slot.inflight:
            raise ValueError(f"engine {slot.engine_id} has {slot.inflight} chunks in flight")
        slot.available = False
        self.changed(slot)
        self._slots[slot.place] = None

    def start(self, slot: EngineSlot, request: Request, total_len: int) -> None:
        """A chunk that grows the request to `total_len` tokens starts on the engine."""
        slot.inflight += 1
        slot.started += 1
        if slot.ledger is not None:
            slot.ledger.reserve(request.group.uid, request.prompt_len, total_len)
            self._holders.setdefault(request.group.uid, set()).add(slot)
        self.changed(slot)

    def end(self, slot: EngineSlot, request: Request, total_len: int) -> None:
        """That chunk is over."""
        uid = request.group.uid
        slot.inflight -= 1
        slot.completed += 1
        if slot.ledger is not None:
            slot.ledger.release(uid, request.prompt_len, total_len)
            if not slot.ledger.holds(uid):
                self._holders[uid].discard(slot)
                if not self._holders[uid]:
                    del self._holders[uid]
        self.changed(slot)

    def changed(self, slot: EngineSlot) -> None:
        """Index the engine as it is now."""
        place, before = slot.place, self._indexed[slot.place]
        now = slot.inflight if slot.available else None
        if now is not None:
            self._put(now, place, slot.room)
        if now == before:
            return
        self._indexed[place] = now
        if now is not None:
            self._inflight.add(now)
        if before is not None:
            self._inflight.remove(before)
            self._put(before, place, ABSENT)

    def home(self, request: Request) -> EngineSlot | None:
        """The engine that ran the request's last chunk; it may have left since."""
        return self._by_id.get(request.engines[-1]) if request.engines else None

    def holders(self, request: Request) -> Set[EngineSlot]:
        """The engines with a ledger that run a sibling now: they hold the prompt's KV."""
        return self._holders.get(request.group.uid, frozenset())

    def least_loaded(self, total_len: int = 0) -> EngineSlot | None:
        """The engine with the fewest chunks in flight, of those with room for a chunk of
        `total_len` tokens whose prompt they do not hold; among equals the first to have joined."""
        inflight = self._largest_room.first(total_len)
        if inflight is None:
            return None
        place = self._by_inflight[inflight].first(total_len)
        return None if place is None else self._slots[place]

    def _put(self, inflight: int, place: int, room: int) -> None:
        tree = self._by_inflight[inflight]
        before = tree.largest
        tree.put(place, room)
        if tree.largest != before:
            self._largest_room.put(inflight, tree.largest)


class Extremes:
    """The least and the most of a bag of small counts, which mostly change by one. Both 0 while
    it is empty."""

    def __init__(self) -> None:
        self.least = 0
        self.most = 0
        self._bag: Counter[int] = Counter()

    def add(self, count: int) -> None:
        """One more of `count`."""
        if not self._bag:
            self.least = self.most = count
        self.least, self.most = min(self.least, count), max(self.most, count)
        self._bag[count] += 1

    def remove(self, count: int) -> None:
        """One fewer."""
        self._bag[count] -= 1
        if self._bag[count]:
            return
        del self._bag[count]
        if not self._bag:
            self.least = self.most = 0
            return
        while self.least not in self._bag:
            self.least += 1
        while self.most not in self._bag:
            self.most -= 1
