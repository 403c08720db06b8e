"""Broadcasts what the first rank decides to all ranks that run a model step together.

If every rank drafted, the drafts would differ, because siblings' tokens reach the ranks at
different times. Trees of different shapes would then hang the next collective. So would accepted
paths of different lengths, where a rank's rounding makes it draw another token.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seer_sgl.draft.drafter import Drafts

from .planner import PLAIN, StepPlan


def agree(plan: StepPlan, count: int, stride: int) -> StepPlan:
    """Returns the first rank's plan for `count` requests, on every rank."""
    if stride == 1:  # no rank drafts
        return plan
    ranks = tp_group()
    if ranks.world_size == 1:
        return plan
    packed = torch.zeros(1 + count * (2 * stride + 1), dtype=torch.int32)
    if ranks.rank_in_group == 0:
        packed.copy_(torch.from_numpy(_pack(plan, count, stride)))
    torch.distributed.broadcast(packed, src=ranks.ranks[0], group=ranks.cpu_group)
    return plan if ranks.rank_in_group == 0 else _unpack(packed.numpy(), count, stride)


def agree_on_draws(draws: torch.Tensor) -> torch.Tensor:
    """Returns the first rank's draws of a verification, [n, width], on every rank, as SGLang's own
    verification does (`eagle_sample`). Log probabilities stay those of each rank."""
    ranks = tp_group()
    if ranks.world_size > 1:
        draws = draws.contiguous()
        ranks.broadcast(draws, src=0)
    return draws


def tp_group() -> Any:
    """Returns the ranks of a step; other ways to share a batch are refused (algorithm.py)."""
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().tp_group


def _pack(plan: StepPlan, count: int, stride: int) -> NDArray[np.int32]:
    packed = np.zeros(1 + count * (2 * stride + 1), np.int32)
    packed[0] = plan.width
    if plan.drafts is not None:
        widest = plan.drafts.tokens.shape[1]
        rows = packed[1:].reshape(count, 2 * stride + 1)
        rows[:, 0] = plan.drafts.counts
        rows[:, 1 : 1 + widest] = plan.drafts.tokens
        rows[:, 1 + stride : 1 + stride + widest] = plan.drafts.parents
    return packed


def _unpack(packed: NDArray[np.int32], count: int, stride: int) -> StepPlan:
    if packed[0] == 1:
        return PLAIN
    rows = packed[1:].reshape(count, 2 * stride + 1)
    tokens = np.ascontiguousarray(rows[:, 1 : 1 + stride])
    unknown = np.zeros_like(tokens)
    return StepPlan(
        int(packed[0]),
        Drafts(
            tokens=tokens,
            parents=np.ascontiguousarray(rows[:, 1 + stride :]),
            probs=unknown.astype(np.float32),
            sources=unknown,
            counts=np.ascontiguousarray(rows[:, 0]),
            matches=unknown[:, 0].copy(),
        ),
    )
