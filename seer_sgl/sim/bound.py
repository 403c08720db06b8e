"""A lower bound of the time that engines need for a workload, whatever the order. Pure.

An order can choose which responses share a step, but not these: an engine holds no more KV than
fits, so all KV of all steps needs a number of steps; each step takes its overhead and reads the
weights of one row at least; each token reads the KV before it; each prompt is prefilled once. The
oracle is no bound: it begins with the longest responses, which is good but not optimal.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from seer_sgl.traces.trace import Responses

from .config import SimConfig
from .steps import StepTime


def lower_bound_s(responses: Sequence[Responses], config: SimConfig) -> float:
    """Returns the least seconds of any rollout without drafts and without preemption."""
    engine, step = config.engine, StepTime(config.engine)
    work = [
        _Work.of(len(group.prompt_ids), length, config.scheduling.chunk_tokens)
        for group in responses
        for length in group.lengths
    ]
    tokens, held = (
        sum(response.tokens for response in work),
        sum(response.held for response in work),
    )
    steps = max(held / engine.kv_tokens, tokens / engine.max_running_requests)
    overhead_s, row_s = engine.overhead_ms * 1e-3, engine.row_overhead_us * 1e-6
    weights_s = step.fixed(1) - overhead_s - row_s
    together = (
        steps * overhead_s
        + max(steps * weights_s, tokens * step.per_row_compute)
        + tokens * row_s
        + sum(response.read for response in work) * step.attention()
        + sum(len(group.prompt_ids) for group in responses) * step.per_prefill_token
    )
    alone = max(
        response.tokens * step.fixed(1) + response.read * step.attention() for response in work
    )
    return max(together / engine.count, alone)


class _Work(NamedTuple):
    """What the steps of one response take: `tokens` decoded, `read`: the sum of the KV tokens that
    they read, `held`: the sum of those that only this response holds."""

    tokens: int
    read: float
    held: float

    @classmethod
    def of(cls, prompt_len: int, length: int, chunk: int) -> "_Work":
        """Returns the work of a response. The first token of a chunk comes from its prefill."""
        prefilled = math.ceil(length / chunk)
        first = chunk * prefilled * (prefilled - 1) / 2  # the sum of the chunks' begins
        held = length * (length - 1) / 2 - first
        tokens = length - prefilled
        return cls(tokens, held + tokens * prompt_len, held)
