"""Where a chunk goes: where its KV is, or to where there is room, with the KV or without.

The published rule (paper section 1): while in-flight counts are balanced, the engine with the
longest cached prefix; else the least loaded one, and a cache gap of more than 512 tokens is
fetched from the pool.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from seer_sgl.types import Move, Request

from .costs import Costs
from .engine_index import EngineIndex, EngineSlot

__all__ = ["CacheAware", "EngineIndex", "EngineSlot", "Placed", "Placement", "Wait"]

GAP_TOKENS = 512  # published: a smaller gap is prefilled
MAX_SPREAD = 32  # published, for engines that run some 256 requests
# A spread of 1/8 of what the busiest engine runs is balanced: 32 of 256, and two of 16 in the tail,
# whose requests would otherwise stay together on some engines while others run empty.
SPREAD_SHARE = 8


class Placed(NamedTuple):
    """The engine of a chunk, and how its KV gets there."""

    slot: EngineSlot
    move: Move


class Wait(Enum):
    """Why a chunk has no engine yet."""

    FOR_ROOM = "room"  # nothing admits it: ask again when a chunk has come back
    FOR_STORE = "store"  # it should move, but its KV is not in the pool yet: wait for that


class Placement(Protocol):
    """Chooses the engine of a chunk (the paper's select_instance)."""

    def choose(
        self, request: Request, total_len: int, fleet: EngineIndex, may_wait: bool
    ) -> Placed | Wait:
        """The engine of the next chunk, which will grow the request to `total_len` tokens.

        `may_wait`: the request may still wait for its KV to be stored.
        """


class CacheAware:
    """The published rule. `max_spread` None scales it to the engines; `costs` decides between
    fetching and prefilling a gap that is not small."""

    def __init__(
        self, costs: Costs | None = None, *, max_spread: int | None = None, gap: int = GAP_TOKENS
    ) -> None:
        self.costs = costs or Costs()
        self._max_spread = max_spread
        self._gap = gap

    def choose(
        self, request: Request, total_len: int, fleet: EngineIndex, may_wait: bool
    ) -> Placed | Wait:
        """Stay, move with KV, move and prefill, or not now."""
        view = _View(request, total_len, fleet)
        best = view.cached_most() if self._balanced(fleet) else view.loaded_least()
        if best is None:
            return Wait.FOR_ROOM
        home = view.home
        if home is None or best is home:
            return Placed(best, Move.STAY)
        if not self._worth_fetching(home, best, request.total_len - view.cached(best)):
            return Placed(best, Move.PREFILL)
        if request.stored:
            return Placed(best, Move.FETCH)
        if may_wait and home.available:
            return Wait.FOR_STORE
        stays = home.admits(request, total_len)
        return Placed(home, Move.STAY) if stays else Placed(best, Move.PREFILL)

    def _worth_fetching(self, home: EngineSlot, to: EngineSlot, gap: int) -> bool:
        shared = home.pool is not None and home.pool == to.pool
        return shared and gap > self._gap and self.costs.fetching_pays(gap)

    def _balanced(self, fleet: EngineIndex) -> bool:
        limit = self._max_spread
        if limit is None:
            limit = min(MAX_SPREAD, max(1, fleet.most_inflight // SPREAD_SHARE))
        return fleet.spread <= limit


class _View:
    """The engines that can be the best for one request, among those that admit it.

    These are its home, the engines that run a sibling, and the least loaded of all others: one
    that holds nothing of the request and has more in flight than that loses on both counts.
    """

    def __init__(self, request: Request, total_len: int, fleet: EngineIndex) -> None:
        self.home = fleet.home(request)
        self._request = request
        self._holders = fleet.holders(request)
        candidates = set(self._holders)
        if self.home is not None:
            candidates.add(self.home)
        self._able = [slot for slot in candidates if slot.admits(request, total_len)]
        other = fleet.least_loaded(total_len)
        if other is not None and other not in candidates:
            self._able.append(other)

    def cached(self, slot: EngineSlot) -> int:
        """Tokens of the request that the engine very likely holds."""
        if slot is self.home:
            return self._request.total_len
        return self._request.prompt_len if slot in self._holders else 0

    def cached_most(self) -> EngineSlot | None:
        """The engine with the longest cached prefix; among equals the least loaded."""
        return min(self._able, key=lambda s: (-self.cached(s), s.inflight, s.place), default=None)

    def loaded_least(self) -> EngineSlot | None:
        """The least loaded engine; among equals the one with the longest cached prefix."""
        return min(self._able, key=lambda s: (s.inflight, -self.cached(s), s.place), default=None)
