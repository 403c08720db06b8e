"""Verification by sample-and-match: exact for any draft, at any temperature.

SGLang's own sampler draws a token at every node of a draft tree, with the parameters, seed and
position that plain decoding would use there. The accepted path is where the drafts equal the
draws. A draft therefore decides how many tokens a step emits, never which tokens.
"""

from typing import Any, NamedTuple

import torch

from seer_sgl.plugin.sglang_types import (
    SglLogits,
    SglModelRunner,
    SglScheduleBatch,
)

from . import ranks
from .minimum import Minimum
from .node_sampler import ASKED_LOGPROBS, NodeSampler
from .walk import Nodes, Walk, walk


class Verified(NamedTuple):
    """A verified step of `n` requests with `width` nodes per request."""

    tokens: torch.Tensor  # int32 [n, width]: accepted tokens, then the bonus token, then 0
    walked: Walk


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
    if shape[1] > 1:  # otherwise ranks draw as in stock decoding
        draws = ranks.agree_on_draws(draws)
    walked = walk(nodes, draws)
    at = walked.path.clamp(min=0)
    tokens = draws.gather(1, at).to(torch.int32).masked_fill_(walked.path < 0, 0)
    if batch.return_logprob:
        _keep(output, walked)
    return Verified(tokens, walked)


def flat(walked: Walk) -> torch.Tensor:
    """Returns the paths as nodes of the whole batch, int64 [n, width], -1 after the last."""
    count, width = walked.path.shape
    first = torch.arange(0, count * width, width, device=walked.path.device)
    return (walked.path + first[:, None]).masked_fill_(walked.path < 0, -1)


def _keep(output: SglLogits, walked: Walk) -> None:
    """Keeps only the logprobs at the accepted nodes, in SGLang's shapes: [n, width], and flat
    lists of top logprobs. What stands at places after the last accepted node is not read."""
    nodes = flat(walked).clamp_(min=0)
    output.next_token_logprobs = output.next_token_logprobs.view(-1)[nodes]
    for name in ASKED_LOGPROBS:
        values = getattr(output, name)
        if values is None or not len(values):
            continue
        if isinstance(values, torch.Tensor):
            setattr(output, name, values[nodes.view(-1)])
        else:
            setattr(output, name, _kept(values, walked.path.clamp(min=0)))


def _kept(values: list[Any], paths: torch.Tensor) -> list[Any]:
    """Returns the entries at the nodes of the paths [n, width], without knowing them on the host.

    A request wants equally many logprobs at each node, and the same tokens.
    """
    kept: list[Any] = []
    width = paths.shape[1]
    for tree, path in enumerate(paths):
        entries = values[tree * width : (tree + 1) * width]
        if isinstance(entries[0], torch.Tensor) and entries[0].numel():
            entries = list(torch.stack(entries)[path])
        kept += entries
    return kept
