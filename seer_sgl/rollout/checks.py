"""Checks of a rollout's sampling, prompts and groups against the engines and the config."""

import logging
from collections.abc import Iterable, Sequence

from seer_sgl.admission.sampling import undivided, unservable
from seer_sgl.config import UNDIVIDED, Config, LocalEngines, SchedulingConfig
from seer_sgl.driver.checks import cut_fetches
from seer_sgl.engine.launch.process import gpu_visible
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import PromptError
from seer_sgl.kvpool.hicache import host_ratio
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import Group, Prompt

from .lengths import expect_all

logger = logging.getLogger(__name__)


def check_sampling(
    prompts: Iterable[Prompt], infos: Sequence[EngineInfo], *, tokenizer: bool
) -> None:
    """Raises PromptError if the engines cannot serve the sampling of a prompt."""
    for prompt in prompts:
        if prompt.sampling is None:
            continue
        for key, why in unservable(prompt.sampling, infos, tokenizer=tokenizer):
            raise PromptError(f"prompt {prompt.prompt_id!r}: sampling.{key}: {why}")


def check_groups(
    groups: Sequence[Group], known: KnownLengths | None, scheduling: SchedulingConfig
) -> None:
    """Raises PromptError if the oracle lacks a length; logs what is undivided or has less room."""
    if known is not None and scheduling.policy == "oracle":
        expect_all(known, groups, str(scheduling.lengths))
    keys = dict.fromkeys(reason.key for group in groups for reason in undivided(group.sampling))
    if keys and scheduling.divide and scheduling.policy not in UNDIVIDED:
        logger.warning(
            "requests run undivided: sampling.%s cannot cross a chunk boundary",
            ", sampling.".join(keys),
        )
    short = [
        group
        for group in groups
        if group.requests[0].max_response_len < group.sampling.max_new_tokens
    ]
    if short:
        wanted = max(group.sampling.max_new_tokens for group in short)
        logger.warning(
            "%d of %d prompts leave less than max_new_tokens = %d tokens in the context; "
            "their responses end there",
            len(short),
            len(groups),
            wanted,
        )


def warnings_of_fetches(config: Config, infos: Sequence[EngineInfo]) -> Iterable[str]:
    """Returns warnings about engines whose host memory may be too small for a fetch."""
    pool, local = config.kv_pool, isinstance(config.engines, LocalEngines)
    if pool.backend == "none" or not (local or pool.host_ratio):
        return ()  # an engine elsewhere has the default ratio of its own machine
    ratio = host_ratio(pool, gpu_visible())
    free = ratio - 1 if config.engines.keeps_host_copies else ratio
    return cut_fetches(free, infos, config.sampling.max_new_tokens)
