"""Where a chunk goes: where its KV is, or to where there is room, with the KV or without.

The published rule (paper section 1): while in-flight counts are balanced, the engine with the
longest cached prefix; else the least loaded one, and a cache gap of more than 512 tokens is
fetched from the pool.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from seer_sgl.types import Move, Request

from .costs import Costs
from .ledger import KVLedger

GAP_TOKENS = 512  # published: a smaller gap is prefilled
MAX_SPREAD = 32  # published, for engines that run some 256 requests
SPREAD_SHARE = 8  # a spread of 1/8 of what an engine may run is balanced


class EngineSlot:
    """The scheduler's view of one engine.

    `ledger` None: admission by count only (the baseline that retracts). `pool`: the namespace of
    its KV in a pool; engines with equal names read each other's pages.
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
        self.completed = 0  # chunks that came back, whatever with
        self.available = True

    def admits(self, request: Request, total_len: int) -> bool:
        """Whether a chunk that grows `request` to `total_len` tokens can start here now."""
        if not self.available or self.inflight >= self.max_inflight:
            return False
        return self.ledger is None or self.ledger.admits(
            request.group.uid, request.prompt_len, total_len
        )


class Placed(NamedTuple):
    """The engine of a chunk, and how its KV gets there."""

    slot: EngineSlot
    move: Move


class Verdict(Enum):
    """Why a chunk has no engine yet."""

    FULL = "full"  # nothing admits it: ask again when a chunk has come back
    UNSTORED = "unstored"  # it should move, but its KV is not in the pool yet: wait for that


class Placement(Protocol):
    """Chooses the engine of a chunk (the paper's select_instance)."""

    def choose(
        self, request: Request, total_len: int, engines: Sequence[EngineSlot], patient: bool
    ) -> Placed | Verdict:
        """The engine of the next chunk, which will grow the request to `total_len` tokens.

        `patient`: the request may still wait for its KV to be stored.
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
        self, request: Request, total_len: int, engines: Sequence[EngineSlot], patient: bool
    ) -> Placed | Verdict:
        """Stay, move with KV, move and prefill, or not now."""
        view = _View(request, total_len, engines)
        best = view.cached_most if self._balanced(view) else view.loaded_least
        if best is None:
            return Verdict.FULL
        home = view.home
        if home is None or best is home:
            return Placed(best, Move.STAY)
        if not self._worth_fetching(request, home, best):
            return Placed(best, Move.PREFILL)
        if request.stored:
            return Placed(best, Move.FETCH)
        if patient and home.available:
            return Verdict.UNSTORED
        stays = home.admits(request, total_len)
        return Placed(home, Move.STAY) if stays else Placed(best, Move.PREFILL)

    def _worth_fetching(self, request: Request, home: EngineSlot, to: EngineSlot) -> bool:
        gap = request.total_len - _cached(request, to)
        shared = home.pool is not None and home.pool == to.pool
        return shared and gap > self._gap and self.costs.fetching_pays(gap)

    def _balanced(self, view: "_View") -> bool:
        limit = self._max_spread
        if limit is None:
            limit = min(MAX_SPREAD, max(1, view.max_inflight // SPREAD_SHARE))
        return view.spread <= limit


class _View:
    """One look at all engines with one request in mind; asks a ledger only where it matters."""

    def __init__(self, request: Request, total_len: int, engines: Iterable[EngineSlot]) -> None:
        last = request.engines[-1] if request.engines else None
        self.home: EngineSlot | None = None
        self.cached_most: EngineSlot | None = None
        self.loaded_least: EngineSlot | None = None
        self.max_inflight = 0
        least, most = None, 0
        by_cache: tuple[int, int] | None = None
        by_load: tuple[int, int] | None = None
        for slot in engines:
            if slot.engine_id == last:
                self.home = slot
            if not slot.available:
                continue
            inflight = slot.inflight
            self.max_inflight = max(self.max_inflight, slot.max_inflight)
            least = inflight if least is None else min(least, inflight)
            most = max(most, inflight)
            cached = _cached(request, slot)
            cache_rank, load_rank = (-cached, inflight), (inflight, -cached)
            first_by_cache = by_cache is None or cache_rank < by_cache
            first_by_load = by_load is None or load_rank < by_load
            if (first_by_cache or first_by_load) and slot.admits(request, total_len):
                if first_by_cache:
                    by_cache, self.cached_most = cache_rank, slot
                if first_by_load:
                    by_load, self.loaded_least = load_rank, slot
        self.spread = most - (least or 0)


def _cached(request: Request, slot: EngineSlot) -> int:
    """Tokens of the request that the engine very likely holds."""
    if request.engines and request.engines[-1] == slot.engine_id:
        return request.total_len
    if slot.ledger is not None and slot.ledger.holds(request.group.uid):
        return request.prompt_len
    return 0
