"""Verification by sample-and-match: exact for any draft, at any temperature.

SGLang's own sampler draws a token at every node of a draft tree, with the parameters, seed and
position that plain decoding would use there. The accepted path is where the drafts equal the
draws. A draft therefore decides how many tokens a step emits, never which tokens.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import Accepted, Layout, accept, lay_out
from seer_sgl.plugin.sglang_types import (
    SglLogits,
    SglModelRunner,
    SglSamplingInfo,
    SglScheduleBatch,
)

from .planner import Plan

# The fields of SamplingBatchInfo that the sampler uses and that have one row per request.
_ROWS = ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed", "logit_bias")


class Verified(NamedTuple):
    """A verified step of `n` requests with `width` nodes per request."""

    tokens: torch.Tensor  # int32 [n, width]: accepted tokens, then the bonus token, then 0
    nodes: torch.Tensor  # int64 [n, width]: their nodes in the flattened batch, then -1
    accepted: Accepted


def layout_of(last: NDArray[np.int32], plan: Plan) -> Layout:
    """Returns the nodes of a plan. last: int32 [n], the newest token per request."""
    drafts = plan.drafts
    if drafts is None:
        none, empty = np.zeros(len(last), np.int32), np.zeros((len(last), 0), np.int32)
        drafts = Drafts(empty, empty, empty.astype(np.float32), empty, none, none)
    return lay_out(last, drafts, plan.width)


def speculates(sampling: SglSamplingInfo) -> bool:
    """Returns whether the sampler can draw at all nodes of a tree.

    Penalties, grammars and the user's logit processors depend on the tokens before a node, so these
    requests are sampled token by token.
    """
    return not (
        sampling.grammars
        or sampling.has_custom_logit_processor
        or sampling.acc_additive_penalties is not None
        or sampling.acc_scaling_penalties is not None
        or sampling.sampling_mask_batch_indices is not None
    )


def verify(
    runner: SglModelRunner,
    batch: SglScheduleBatch,
    output: SglLogits,
    layout: Layout,
    positions: torch.Tensor,
) -> Verified:
    """Draws at every node, walks the trees, and keeps the accepted tokens' logprobs in `output`.

    output: of the verification, logits [n * width, vocabulary]. positions: int64 [n * width].
    """
    width = layout.tokens.shape[1]
    sampling = _repeated(batch.sampling_info, width)
    if sampling.logit_bias is not None:
        output.next_token_logits.add_(sampling.logit_bias)
    draws = runner.sampler(
        output,
        sampling,
        batch.return_logprob,
        _each(batch.top_logprobs_nums, width),
        _each(batch.token_ids_logprobs, width),
        positions,
    )
    targets: NDArray[np.int64] = draws.view(-1, width).cpu().numpy().astype(np.int64)
    accepted = accept(layout, targets)
    nodes = accepted.nodes.astype(np.int64)
    base = np.arange(len(nodes))[:, None] * width
    index = torch.from_numpy(np.where(nodes >= 0, nodes + base, -1)).to(draws.device)
    at = index.clamp(min=0)
    tokens = draws.view(-1)[at].to(torch.int32)
    tokens.masked_fill_(index < 0, 0)
    if batch.return_logprob:
        _keep(output, at)
    return Verified(tokens, index, accepted)


def _repeated(info: Any, width: int) -> Any:
    """Returns the sampling parameters of every node, copied from its request."""
    changes = {
        name: value.repeat_interleave(width, dim=0)
        for name in _ROWS
        if (value := getattr(info, name)) is not None
    }
    return dataclasses.replace(info, **changes)


def _each(values: list[Any] | None, width: int) -> list[Any]:
    return [value for value in values or [] for _ in range(width)]


def _keep(output: SglLogits, at: torch.Tensor) -> None:
    """Keeps only the logprobs at the accepted nodes, in SGLang's shapes: [n, width], and flat
    lists of top logprobs."""
    output.next_token_logprobs = output.next_token_logprobs.view(-1)[at]
    flat = at.view(-1)
    for name in (
        "next_token_top_logprobs_val",
        "next_token_top_logprobs_idx",
        "next_token_token_ids_logprobs_val",
        "next_token_token_ids_logprobs_idx",
    ):
        values = getattr(output, name)
        if not values:
            continue
        if isinstance(values, torch.Tensor):
            setattr(output, name, values[flat])
        else:
            setattr(output, name, [values[i] for i in flat.tolist()])
