"""Verification by sample-and-match: exact for any draft, at any temperature.

SGLang's own sampler draws a token at every node of a draft tree, with the parameters, seed and
position that plain decoding would use there. The accepted path is where the drafts equal the
draws. A draft therefore decides how many tokens a step emits, never which tokens.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import Layout, lay_out
from seer_sgl.plugin.sglang_types import (
    SglLogits,
    SglModelRunner,
    SglScheduleBatch,
)

from .minimum import Minimum
from .node_sampler import ASKED_LOGPROBS, NodeSampler
from .planner import Plan
from .walk import Nodes, Walk, walk


class Verified(NamedTuple):
    """A verified step of `n` requests with `width` nodes per request."""

    tokens: torch.Tensor  # int32 [n, width]: accepted tokens, then the bonus token, then 0
    walked: Walk


def layout_of(last: NDArray[np.int32], plan: Plan) -> Layout:
    """Returns the nodes of a plan. last: int32 [n], the newest token per request."""
    drafts = plan.drafts
    if drafts is None:
        none, empty = np.zeros(len(last), np.int32), np.zeros((len(last), 0), np.int32)
        drafts = Drafts(empty, empty, empty.astype(np.float32), empty, none, none)
    return lay_out(last, drafts, plan.width)


def verify(  # noqa: PLR0917
    runner: SglModelRunner,
    batch: SglScheduleBatch,
    output: SglLogits,
    nodes: Nodes,
    positions: torch.Tensor,
    minimum: Minimum | None,
) -> Verified:
    """Draws at every node, walks the trees, and keeps the accepted tokens' logprobs in `output`.

    output: of the verification, logits [n * width, vocabulary]. positions: int64 [n * width].
    """
    shape = nodes.tokens.shape
    draws = NodeSampler(runner, batch, shape[1], minimum).draw(output, positions).view(shape)
    walked = walk(nodes, draws)
    at = walked.path.clamp(min=0)
    tokens = draws.gather(1, at).to(torch.int32).masked_fill_(walked.path < 0, 0)
    if batch.return_logprob:
        _keep(output, flat(walked).clamp_(min=0))
    return Verified(tokens, walked)


def flat(walked: Walk) -> torch.Tensor:
    """Returns the paths as nodes of the whole batch, int64 [n, width], -1 after the last."""
    count, width = walked.path.shape
    first = torch.arange(0, count * width, width, device=walked.path.device)
    return (walked.path + first[:, None]).masked_fill_(walked.path < 0, -1)


def _keep(output: SglLogits, at: torch.Tensor) -> None:
    """Keeps only the logprobs at the accepted nodes, in SGLang's shapes: [n, width], and flat
    lists of top logprobs."""
    output.next_token_logprobs = output.next_token_logprobs.view(-1)[at]
    nodes = at.view(-1)
    for name in ASKED_LOGPROBS:
        values = getattr(output, name)
        if values is None or not len(values):
            continue
        if isinstance(values, torch.Tensor):
            setattr(output, name, values[nodes])
        else:
            setattr(output, name, [values[i] for i in nodes.tolist()])
