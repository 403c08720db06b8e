"""The choice of a chunk's engine: the one that holds its KV, or one with room.

The published rule (paper section 1): while in-flight counts are balanced, take the engine with the
longest cached prefix; else take the least loaded engine. A cache gap of more than 512 tokens is
fetched from the pool.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from seer_sgl.types import Move, Request

from .attempts import Attempts
from .costs import Costs
from .engine_index import EngineIndex, EngineSlot

__all__ = ["CacheAware", "EngineIndex", "EngineSlot", "Placed", "Placement", "Wait"]

GAP_TOKENS = 512  # published: a smaller gap is prefilled
MAX_SPREAD = 32  # published, for engines that run about 256 requests
# A spread of 1/8 of the busiest engine's requests is balanced: 32 of 256, or 2 of 16 in the tail.
# With a fixed spread of 32, tail requests would stay together on a few engines while others idle.
SPREAD_SHARE = 8


class Placed(NamedTuple):
    """The engine of a chunk, and how its KV gets there."""

    slot: EngineSlot
    move: Move


class Wait(Enum):
    """The reason why a chunk has no engine yet."""

    FOR_ROOM = "room"  # no engine admits it: choose again when a chunk has returned
    FOR_STORE = "store"  # it should move, but its KV is not in the pool yet


class Placement(Protocol):
    """Chooses the engine of a chunk (the paper's select_instance)."""

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        """Returns the engine of the next chunk, which grows the request to `total_len` tokens."""


class CacheAware:
    """The published rule. `max_spread` None scales the spread to the engines' load; `costs` decides
    between fetching and prefilling a large gap."""

    def __init__(
        self, costs: Costs | None = None, *, max_spread: int | None = None, gap: int = GAP_TOKENS
    ) -> None:
        self.costs = costs or Costs()
        self._max_spread = max_spread
        self._gap = gap

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        """Returns an engine and how the KV gets there, or the reason to wait."""
        request = attempts.request
        view = _View(request, total_len, fleet)
        best = view.cached_most() if self._balanced(fleet) else view.loaded_least()
        if best is None:
            return Wait.FOR_ROOM
        preferred = view.preferred
        if preferred is None or best is preferred:
            return Placed(best, Move.STAY)
        if not self._worth_fetching(preferred, best, request.total_len - view.cached(best)):
            return Placed(best, Move.PREFILL)
        if attempts.stored:
            return Placed(best, Move.FETCH)
        if attempts.may_wait and preferred.available:
            return Wait.FOR_STORE
        stays = preferred.admits(request, total_len)
        return Placed(preferred, Move.STAY) if stays else Placed(best, Move.PREFILL)

    def _worth_fetching(self, preferred: EngineSlot, to: EngineSlot, gap: int) -> bool:
        shared = preferred.pool is not None and preferred.pool == to.pool and to.reads
        return shared and gap > self._gap and self.costs.fetching_pays(gap)

    def _balanced(self, fleet: EngineIndex) -> bool:
        limit = self._max_spread
        if limit is None:
            limit = min(MAX_SPREAD, max(1, fleet.most_inflight // SPREAD_SHARE))
        return fleet.spread <= limit


class _View:
    """The candidates for one request, among the engines that admit it.

    The candidates are its preferred engine, the engines that run a sibling, and the least loaded
    other engine. Any other engine holds no KV of the request and has at least as many chunks in
    flight.
    """

    def __init__(self, request: Request, total_len: int, fleet: EngineIndex) -> None:
        self.preferred = fleet.preferred(request)
        self._request = request
        self._holders = fleet.holders(request)
        candidates = set(self._holders)
        if self.preferred is not None:
            candidates.add(self.preferred)
        self._able = [slot for slot in candidates if slot.admits(request, total_len)]
        other = fleet.least_loaded(total_len)
        if other is not None and other not in candidates:
            self._able.append(other)

    def cached(self, slot: EngineSlot) -> int:
        """Returns the tokens of the request whose KV the engine very likely holds."""
        if slot is self.preferred:
            return self._request.total_len
        return self._request.prompt_len if slot in self._holders else 0

    def cached_most(self) -> EngineSlot | None:
        """Returns the engine with the longest cached prefix; ties: the least loaded."""
        return min(self._able, key=lambda s: (-self.cached(s), s.inflight, s.place), default=None)

    def loaded_least(self) -> EngineSlot | None:
        """Returns the least loaded engine; ties: the longest cached prefix."""
        return min(self._able, key=lambda s: (s.inflight, -self.cached(s), s.place), default=None)
