"""The engines, indexed so that a decision reads a few of them instead of all.

Every change of an engine that matters to placement updates the index: O(log engines).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Set

from seer_sgl.types import Move, Request

from .first_fit import ABSENT, FirstFit
from .ledger import KVLedger

UNLIMITED = 1 << 62  # room of an engine without a ledger, or its limit of chunks in flight


class EngineSlot:
    """The scheduler's view of one engine.

    `ledger` None: admission by count only (the baseline that retracts). `pool`: the namespace of
    its KV in a pool; engines with equal names read each other's pages. After a change of a slot
    that has joined, call `EngineIndex.changed`.
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
        self.completed = 0  # chunks that returned, with or without tokens
        self.served = 0  # chunks that returned tokens
        self.available = True
        self.reads = True  # its chunks may read KV from the pool
        self.leaving = False  # it is never available again
        self.reserved_for: Request | None = None  # a suspect (suspects.py); others do not join it
        # Since the last chunk with tokens: the reason why the newest chunk returned none, and the
        # groups (by uid) that only this engine has refused.
        self.trouble = ""
        self.refused: set[str] = set()
        self.place = 0  # position in the index, by time of joining

    @property
    def room(self) -> int:
        """The longest chunk of a new group that can start here now, tokens; else ABSENT."""
        if not self.available or self.inflight >= self.max_inflight or self.reserved_for:
            return ABSENT
        return UNLIMITED if self.ledger is None else self.ledger.room

    def admits(self, request: Request, total_len: int) -> bool:
        """Returns whether a chunk that grows `request` to `total_len` tokens can start here now."""
        if not self.available or self.inflight >= self.max_inflight:
            return False
        if self.reserved_for not in (None, request):
            return False
        return self.ledger is None or self.ledger.admits(request.group.uid, total_len)


class EngineIndex:
    """All engines in order of joining; iterating yields all slots, available or not.

    An engine that has left is still the preferred one of the requests that it ran, until an engine
    with the same id joins.
    """

    def __init__(self) -> None:
        self._slots: list[EngineSlot | None] = []  # by place; None: it left
        self._by_id: dict[str, EngineSlot] = {}
        self._indexed: list[int | None] = []  # inflight if available
        # The room of each engine, by chunks in flight, then by place. `_largest_room[k]` is the
        # largest room of an engine with k chunks.
        self._by_inflight: defaultdict[int, FirstFit] = defaultdict(FirstFit)
        self._largest_room = FirstFit()
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
        """The most minus the fewest chunks in flight on an available engine."""
        return self._inflight.most - self._inflight.least

    @property
    def most_inflight(self) -> int:
        """The most chunks in flight on an available engine."""
        return self._inflight.most

    def add(self, slot: EngineSlot) -> None:
        """Adds an engine. Raises ValueError if an engine with the same id has not left."""
        other = self._by_id.get(slot.engine_id)
        if other is not None and self._slots[other.place] is other:
            raise ValueError(f"engine {slot.engine_id} is there already")
        slot.place = len(self._slots)
        self._slots.append(slot)
        self._by_id[slot.engine_id] = slot
        self._indexed.append(None)
        self.changed(slot)

    def remove(self, slot: EngineSlot) -> None:
        """Removes an engine. Raises ValueError while it has chunks in flight."""
        if slot.inflight:
            raise ValueError(f"engine {slot.engine_id} has {slot.inflight} chunks in flight")
        slot.available = False
        self.changed(slot)
        self._slots[slot.place] = None

    def start(self, slot: EngineSlot, request: Request, total_len: int) -> None:
        """Accounts for a chunk that grows the request to `total_len` tokens on the engine."""
        slot.inflight += 1
        slot.started += 1
        if slot.ledger is not None:
            slot.ledger.reserve(request.group.uid, min(request.prompt_len, total_len), total_len)
            self._holders.setdefault(request.group.uid, set()).add(slot)
        self.changed(slot)

    def end(self, slot: EngineSlot, request: Request, total_len: int) -> None:
        """Removes that chunk from the account."""
        uid = request.group.uid
        slot.inflight -= 1
        slot.completed += 1
        if slot.ledger is not None:
            slot.ledger.release(uid, total_len)
            if not slot.ledger.holds(uid):
                self._holders[uid].discard(slot)
                if not self._holders[uid]:
                    del self._holders[uid]
        self.changed(slot)

    def changed(self, slot: EngineSlot) -> None:
        """Indexes the current state of the engine."""
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

    def preferred(self, request: Request) -> EngineSlot | None:
        """Returns the engine that ran the request's last chunk, or that holds KV of its input; it
        may have left since."""
        engine_id = request.engines[-1] if request.engines else request.preferred_engine
        return None if engine_id is None else self._by_id.get(engine_id)

    def move_without_pool(self, request: Request, slot: EngineSlot) -> Move:
        """Returns how the KV of a request without KV in the pool gets to an engine."""
        return Move.STAY if self.preferred(request) in (None, slot) else Move.PREFILL

    def holders(self, request: Request) -> Set[EngineSlot]:
        """Returns the engines with a ledger that run a sibling now: they hold the prompt's KV."""
        return self._holders.get(request.group.uid, frozenset())

    def least_loaded(self, total_len: int = 0) -> EngineSlot | None:
        """Returns the engine with the fewest chunks in flight among the engines with room for a
        chunk of `total_len` tokens whose prompt they do not hold. Ties: the first to join."""
        inflight = self._largest_room.first_at_least(total_len)
        if inflight is None:
            return None
        place = self._by_inflight[inflight].first_at_least(total_len)
        return None if place is None else self._slots[place]

    def _put(self, inflight: int, place: int, room: int) -> None:
        tree = self._by_inflight[inflight]
        before = tree.largest
        tree.put(place, room)
        if tree.largest != before:
            self._largest_room.put(inflight, tree.largest)


class Extremes:
    """The least and the most of a multiset of small counts, which mostly change by one. Both are 0
    while it is empty."""

    def __init__(self) -> None:
        self.least = 0
        self.most = 0
        self._bag: Counter[int] = Counter()

    def add(self, count: int) -> None:
        """Adds one `count`."""
        if not self._bag:
            self.least = self.most = count
        self.least, self.most = min(self.least, count), max(self.most, count)
        self._bag[count] += 1

    def remove(self, count: int) -> None:
        """Removes one `count`."""
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
