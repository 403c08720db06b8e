"""The scheduler that config and engines ask for."""

import logging
from collections.abc import Sequence

from seer_sgl.config import Config
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.fleet import UNLIMITED, EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import CacheAware, Placement
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import make_strategy
from seer_sgl.types import EngineInfo

logger = logging.getLogger(__name__)


def make_scheduler(
    config: Config,
    engines: Sequence[EngineInfo],
    *,
    costs: Costs | None = None,
    known: KnownLengths | None = None,
    placement: Placement | None = None,
) -> Scheduler:
    """A scheduler with all engines in it.

    `known`: what is in `scheduling.lengths`. `placement` replaces that of the policy (experiments).
    """
    scheduling = config.scheduling
    cache_aware = CacheAware(
        costs, max_spread=scheduling.max_spread, gap=scheduling.fetch_gap_tokens
    )
    strategy = make_strategy(scheduling.policy, cache_aware, known)
    divide = scheduling.divide and not strategy.whole
    undivided = config.sampling.undivided_because()
    if undivided and divide:
        logger.warning(
            "requests run undivided: sampling.%s cannot cross a chunk boundary",
            ", sampling.".join(undivided),
        )
    scheduler = Scheduler(
        scheduling.chunk_tokens,
        divide=divide,
        continues=not undivided,
        patience_s=config.engines.recovery_timeout_s,
        policy=strategy.policy,
        placement=placement or strategy.placement,
    )
    for info in engines:
        scheduler.add_engine(_slot(config, info, strategy.whole))
    return scheduler


def _slot(config: Config, info: EngineInfo, whole: bool) -> EngineSlot:
    if whole:
        return EngineSlot(info.engine_id, None, UNLIMITED, info.pool)
    most = info.max_running_requests
    if config.scheduling.max_inflight_per_engine is not None:
        most = min(most, config.scheduling.max_inflight_per_engine)
    ledger = None
    if config.scheduling.kv_ledger:
        ledger = KVLedger(
            info.max_total_num_tokens, info.page_size, info.radix_cache, info.draft_tokens
        )
    return EngineSlot(info.engine_id, ledger, most, info.pool)
