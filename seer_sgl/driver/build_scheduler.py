"""Builds the scheduler from the config section `scheduling`, and the scheduler's engine slots."""

from seer_sgl.config import UNDIVIDED, SchedulingConfig
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.engine_index import UNLIMITED, EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import CacheAware, Placement
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import make_strategy
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import EngineInfo


def build_scheduler(
    scheduling: SchedulingConfig,
    *,
    patience_s: float = 60.0,
    max_engine_kills: int = 2,
    costs: Costs | None = None,
    known: KnownLengths | None = None,
    placement: Placement | None = None,
    max_inflight: int | None = None,
    timing: Timing = DEFAULT,
) -> Scheduler:
    """Returns a scheduler without engines.

    `known`: the lengths read from `scheduling.lengths`. `placement` replaces the policy's placement
    (experiments). `max_inflight`: the most chunks in flight on all engines together.
    """
    cache_aware = CacheAware(
        costs, max_spread=scheduling.max_spread, gap=scheduling.fetch_gap_tokens
    )
    strategy = make_strategy(scheduling.policy, cache_aware, known)
    return Scheduler(
        scheduling.chunk_tokens,
        divide=scheduling.divide and not strategy.undivided,
        patience_s=patience_s,
        max_engine_kills=max_engine_kills,
        make_policy=strategy.make_policy,
        placement=placement or strategy.placement,
        max_inflight=max_inflight,
        store_patience_s=timing.store_patience_s,
    )


def new_slot(scheduling: SchedulingConfig, info: EngineInfo) -> EngineSlot:
    """Returns the scheduler's view of an engine that joins."""
    if scheduling.policy in UNDIVIDED:
        return EngineSlot(info.engine_id, None, UNLIMITED, info.pool)
    max_inflight = info.max_running_requests
    if scheduling.max_inflight_per_engine is not None:
        max_inflight = min(max_inflight, scheduling.max_inflight_per_engine)
    ledger = None
    if scheduling.kv_ledger:
        ledger = KVLedger(
            info.max_total_num_tokens, info.page_size, info.radix_cache, info.draft_tokens
        )
    return EngineSlot(info.engine_id, ledger, max_inflight, info.pool)
