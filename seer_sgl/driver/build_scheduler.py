"""Builds the scheduler from the settings of a driver, and the scheduler's engine slots."""

from seer_sgl.config import UNDIVIDED, SchedulingConfig
from seer_sgl.engine_types import EngineInfo
from seer_sgl.scheduling.engine_index import UNLIMITED, EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.placement import CacheAware
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import make_strategy

from .settings import Settings


def build_scheduler(settings: Settings) -> Scheduler:
    """Returns a scheduler without engines."""
    scheduling = settings.scheduling
    cache_aware = CacheAware(
        settings.costs, max_spread=scheduling.max_spread, gap=scheduling.fetch_gap_tokens
    )
    strategy = make_strategy(scheduling.policy, cache_aware, settings.known)
    return Scheduler(
        scheduling.chunk_tokens,
        divide=scheduling.divide and not strategy.undivided,
        patience_s=settings.engines.recovery_timeout_s,
        max_engine_kills=settings.rollout.max_engine_kills,
        make_policy=strategy.make_policy,
        placement=settings.placement or strategy.placement,
        max_inflight=settings.max_inflight,
        store_patience_s=settings.timing.store_patience_s,
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
