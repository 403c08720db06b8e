"""Verification of draft trees with `torch_native`, which stock SGLang cannot do.

A draft token attends to all tokens before the draft and to its own ancestors, in a layer with a
sliding window to those within the window. The mask arrives as `spec_info.custom_mask`, [requests,
nodes, nodes] flattened (SGLang's QLEN_ONLY layout).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from seer_sgl.plugin.sglang_types import SglAttentionLayer, SglForwardBatch, SglTorchNative

R = TypeVar("R")


class _Tree(NamedTuple):
    """One request's part of a verification."""

    slots: torch.Tensor  # KV slots of its tokens and its draft nodes
    mask: torch.Tensor  # [nodes, tokens + nodes]: 0 where a node attends, else minus infinity


def plan_trees(result: R, self: SglTorchNative, forward_batch: SglForwardBatch) -> R:
    """Hook after `TorchNativeAttnBackend.init_forward_metadata`: prepares the masks per step."""
    self.seer_trees = None
    if not forward_batch.forward_mode.is_target_verify():
        return result
    nodes = forward_batch.spec_info.draft_token_num
    trees = forward_batch.spec_info.custom_mask.view(-1, nodes, nodes)
    req_to_token = self.req_to_token_pool.req_to_token
    rows = zip(
        forward_batch.seq_lens.tolist(), forward_batch.req_pool_indices.tolist(), trees, strict=True
    )
    self.seer_trees = [
        _Tree(req_to_token[row, : length + nodes].long(), _additive(tree, length))
        for length, row, tree in rows
    ]
    self.seer_masks = {}  # by the number of query heads that share a KV head, and the window
    return result


def _additive(tree: torch.Tensor, length: int) -> torch.Tensor:
    """Returns an additive mask; from a boolean mask SDPA would compute it in every layer."""
    mask = torch.zeros((len(tree), length + len(tree)))
    mask[:, length:].masked_fill_(~tree, float("-inf"))
    return mask


def within(mask: torch.Tensor, window: int | None) -> torch.Tensor:
    """Returns an additive mask without what is beyond a sliding window, as SGLang decodes.

    A token attends to `window` positions before its own; to all if it is None or negative. The
    position of a node follows from the number of its ancestors.
    """
    if window is None or window < 0:
        return mask
    length = mask.shape[1] - len(mask)
    depths = (mask[:, length:] == 0).sum(1) - 1
    positions = torch.cat((torch.arange(length), length + depths))
    return mask.masked_fill(positions < positions[length:, None] - window, float("-inf"))


def attend_to_trees(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., torch.Tensor],
    self: SglTorchNative,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: SglAttentionLayer,
    forward_batch: SglForwardBatch,
    save_kv_cache: bool = True,
    **options: Any,
) -> torch.Tensor:
    """Hook around `TorchNativeAttnBackend.forward_extend`, with its shapes.

    q and the result: [nodes of all requests, heads * size].
    """
    if not forward_batch.forward_mode.is_target_verify():
        return stock(self, q, k, v, layer, forward_batch, save_kv_cache, **options)
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool = self.token_to_kv_pool
    if save_kv_cache and k is not None:
        where = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
        pool.set_kv_buffer(layer, where, k, v)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    heads, kv_heads = layer.tp_q_head_num, layer.tp_k_head_num
    nodes = forward_batch.spec_info.draft_token_num
    shared = heads // kv_heads  # query heads that share a KV head become rows of one query
    queries = q.view(-1, nodes, kv_heads, shared, layer.qk_head_dim)
    output = q.new_empty((q.shape[0] // nodes, nodes, kv_heads, shared, layer.v_head_dim))
    kind = shared, layer.sliding_window_size
    if kind not in self.seer_masks:  # in the first such layer of a step
        self.seer_masks[kind] = [
            within(tree.mask, kind[1]).repeat(shared, 1) for tree in self.seer_trees
        ]
    for i, (tree, mask) in enumerate(zip(self.seer_trees, self.seer_masks[kind], strict=True)):
        attended = scaled_dot_product_attention(
            queries[i].permute(1, 2, 0, 3).reshape(1, kv_heads, shared * nodes, -1),
            keys.index_select(0, tree.slots).transpose(0, 1).unsqueeze(0).to(q.dtype),
            values.index_select(0, tree.slots).transpose(0, 1).unsqueeze(0).to(q.dtype),
            attn_mask=mask.to(q.dtype),
            scale=layer.scaling,
        )
        output[i] = attended.view(kv_heads, shared, nodes, -1).permute(2, 0, 1, 3)
    return output.view(q.shape[0], heads * layer.v_head_dim)
