"""Makes the tokens of a seeded request independent of the other requests in its batch.

SGLang's noise is a function of (seed, position, column). The column is a token id while no request
of the batch filters. With one top-p, top-k or greedy request, SGLang sorts all rows by
probability, and the column becomes a rank. The hooks filter every row in the order of probability
and draw in the order of the vocabulary. In such a batch a seed draws other tokens than in stock
SGLang, from the same distribution: Gumbel-max is exact for any assignment of noise to columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .hook import SAMPLING, Hook
from .sglang_types import SglSamplingInfo

if TYPE_CHECKING:
    import torch  # heavy: the driver imports this package too


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch",
            draw_by_column,
            "around",
            "SGLang assigns the seeded noise by rank as soon as one request of the batch filters; "
            "assigning it by token makes a draw independent of the other requests.",
            "SGLang assigns seeded noise by token in every batch.",
        ),
        Hook(
            f"{SAMPLING}.from_schedule_batch",
            greedy_at_temperature_one,
            "after",
            "SGLang returns a greedy request's logprobs at temperature 1 only in an all-greedy "
            "batch; here it does so in every batch.",
            "SGLang returns the logprobs of greedy requests at temperature 1 in every batch.",
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
    **options: Any,
) -> Any:
    """Hook around `top_k_top_p_min_p_sampling_from_probs_torch`: returns tokens, int32 [rows].

    probs: [rows, vocabulary]. With `return_filtered_probs` it also returns the filtered
    probabilities (likeliest first), their tokens, and the probabilities of the drawn tokens.
    Without seeds SGLang's own function draws. With seeds and min-p, that function would crash
    the engine by an assertion.
    """
    if sampling_seed is None:
        filters = (top_ks, top_ps, min_ps, need_min_p_sampling)
        options["return_filtered_probs"] = return_filtered_probs
        return stock(probs, *filters, sampling_seed, positions, **options)
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
    """Returns the probabilities by rank, 0 where the row's filters exclude, and their tokens.

    Each row depends on itself alone. Equal probabilities rank in the order of the vocabulary. The
    sum is float64, because the order in which a GPU adds depends on the number of rows. Rounding
    excludes no token of a row without top-p.
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
    """Hook after `SamplingBatchInfo.from_schedule_batch`: sets temperature 1 for greedy requests.

    SGLang returns their logprobs at temperature 1 only if the whole batch is greedy. `top_k` 1 is
    greedy at any temperature.
    """
    result.temperatures.masked_fill_(result.top_ks.view(-1, 1) <= 1, 1.0)
    return result
