"""Moves what belongs to accepted draft tokens to the places of plain decoding: KV, routed experts.

A verification writes the KV of all nodes of a tree into a row's next slots, node after node. On a
chain an accepted token is where it belongs; on a tree it may stand behind tokens of other branches.
"""

from typing import Any

import torch

from seer_sgl.plugin.sglang_types import SglCapturer, SglResult

from .verify import flat
from .walk import Walk


def move_accepted(
    cache: Any, capturer: SglCapturer | None, result: SglResult, slots: torch.Tensor, walked: Walk
) -> None:
    """Moves the KV and the routed experts of accepted nodes to the first slots.

    cache: SGLang's KV pool. `capturer`: of routed experts, if the server returns them. slots: of
    all nodes, [n, width].

    SGLang's `move_accept_tokens_to_target_kvcache` looks the targets up in `req_to_token`, which
    the scheduler may already overwrite at this point; here they are the nodes' own slots.
    """
    nodes = torch.arange(slots.numel(), device=slots.device).view(slots.shape)
    taken = torch.where(walked.path >= 0, flat(walked), nodes).view(-1)
    targets = slots.reshape(-1)
    cache.move_kv_cache(targets, targets[taken])
    if capturer is not None:
        move_rows(capturer, result, targets, taken)


def move_rows(
    capturer: SglCapturer, result: SglResult, targets: torch.Tensor, taken: torch.Tensor
) -> None:
    """Moves rows of routed experts. targets: slots of all nodes; `taken`: the node of each slot."""
    if result.routed_experts_output is not None:  # with overlap they are on the way to the host
        result.routed_experts_output.topk = result.routed_experts_output.topk[taken]
    else:
        rows = capturer.host_cache.buffer
        rows[targets.cpu()] = rows[targets[taken].cpu()]
