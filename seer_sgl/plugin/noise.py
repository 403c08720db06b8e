"""A seeded request draws the same tokens whatever else is in its batch.

SGLang's noise is a function of (seed, position, column). Column is the vocabulary's as long as no
request of the batch filters; with one top-p, top-k or greedy request in it SGLang sorts all rows
by probability, and column becomes the rank. Here every row is filtered in the order of probability
and drawn in the order of the vocabulary: each seed draws another token than in stock SGLang then,
from the same distribution (Gumbel-max is exact for any assignment of noise to columns).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hook import SAMPLER, SAMPLING, Hook
from .sglang_types import SglSamplingInfo

if TYPE_CHECKING:
    import torch  # heavy: the driver reads this package too


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{SAMPLER}.top_k_top_p_min_p_sampling_from_probs_torch",
            draw_by_column,
            "around",
            "SGLang assigns the seeded noise by rank as soon as one request of the batch filters; "
            "assigning it by token makes a draw independent of the other requests.",
        ),
        Hook(
            f"{SAMPLING}.from_schedule_batch",
            greedy_at_temperature_one,
            "after",
            "SGLang returns a greedy request's logprobs at temperature 1 only in an all-greedy "
            "batch; here it does so in every batch.",
        ),
    ]


def draw_by_column(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., Any],
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: torch.Tensor | None,
    positions: torch.Tensor,
    *,
    return_filtered_probs: bool = False,
) -> Any:
    """Around `top_k_top_p_min_p_sampling_from_probs_torch`: int32 [rows], the tokens drawn.

    probs: [rows, vocabulary]. With `return_filtered_probs` also the filtered probabilities, the
    likeliest first, their tokens, and the probabilities of the tokens drawn. Without seeds SGLang's
    own function draws. With seeds that one also ends the engine, by an assertion, at min-p.
    """
    if sampling_seed is None:
        return stock(
            probs,
            top_ks,
            top_ps,
            min_ps,
            need_min_p_sampling,
            sampling_seed,
            positions,
            return_filtered_probs=return_filtered_probs,
        )
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    ranked, tokens = _filtered(probs, top_ks, top_ps, min_ps if need_min_p_sampling else None)
    kept = torch.zeros_like(probs).scatter_(1, tokens, ranked)
    drawn = sampling_from_probs_torch(kept, sampling_seed=sampling_seed, positions=positions)
    if not return_filtered_probs:
        return drawn
    weights = kept.gather(1, drawn.view(-1, 1).long()).view(-1)
    return drawn, ranked, tokens.to(torch.int32), weights


def _filtered(
    probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, min_ps: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities by rank, 0 where the row's own filters exclude, and the tokens of the ranks.

    Each row depends on itself alone. Equal probabilities rank in the order of the vocabulary. The
    sum is float64, because the order in which a GPU adds depends on the number of rows; and a row
    without top-p loses nothing to its rounding.
    """
    import torch

    ranked, tokens = probs.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(dim=-1, dtype=torch.float64).sub_(ranked)
    top_ps = top_ps.view(-1, 1)
    excluded = (before > top_ps) & (top_ps < 1.0)
    excluded |= torch.arange(probs.shape[-1], device=probs.device) >= top_ks.view(-1, 1)
    if min_ps is not None:
        excluded |= ranked < ranked[:, :1] * min_ps.view(-1, 1)
    return ranked.masked_fill_(excluded, 0.0), tokens


def greedy_at_temperature_one(result: SglSamplingInfo, *_: object, **__: object) -> SglSamplingInfo:
    """After `SamplingBatchInfo.from_schedule_batch`: SGLang returns a greedy request's logprobs at
    temperature 1 only if all the batch is greedy. `top_k` 1 is greedy at any temperature."""
    result.temperatures.masked_fill_(result.top_ks.view(-1, 1) <= 1, 1.0)
    return result
