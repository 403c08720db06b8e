"""`torch_native` attention whose cost depends on the new tokens only, as in the GPU backends.

Stock SGLang pads the query of a continuation to the whole sequence, so a chunk with a full cache
hit still costs O(length^2). It also repeats the KV heads for every query head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def _plain(encoder_lens: torch.Tensor | None, options: dict[str, Any]) -> bool:
    """Returns whether a layer is ordinary self-attention; stock SGLang runs every other kind."""
    window = options.get("sliding_window_size")
    return (
        encoder_lens is None
        and not options.get("is_cross_attn")
        and (window is None or window <= -1)
    )


def _gather(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns one request's KV [1, KV heads, tokens, size] from a pool [slots, KV heads, size]."""
    return cache.index_select(0, slots).transpose(0, 1).unsqueeze(0).to(dtype)


def decode_grouped(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., torch.Tensor],
    self: object,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Hook around `TorchNativeAttnBackend._run_sdpa_forward_decode`, with its shapes.

    The query heads that share a KV head become rows of one query: no KV head is repeated.
    """
    if not _plain(encoder_lens, options):
        kv = (k_cache, v_cache, req_to_token, req_pool_indices)
        return stock(self, query, output, *kv, seq_lens, encoder_lens, **options)
    heads, kv_heads = query.shape[1], k_cache.shape[1]
    rows = zip(seq_lens.tolist(), req_pool_indices.tolist(), strict=True)
    for i, (length, row) in enumerate(rows):
        slots = req_to_token[row, :length]
        attended = scaled_dot_product_attention(
            query[i].view(1, kv_heads, heads // kv_heads, -1),
            _gather(k_cache, slots, query.dtype),
            _gather(v_cache, slots, query.dtype),
            scale=options.get("scaling"),
        )
        output[i] = attended.view(heads, -1)
    return output


def extend_new_rows_only(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., torch.Tensor],
    self: object,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Hook around `TorchNativeAttnBackend._run_sdpa_forward_extend`: computes new tokens only.

    query, output: [new tokens of all requests, heads, head size]; k_cache, v_cache:
    [KV slots, KV heads, head size].
    """
    if not (options.get("causal") and _plain(encoder_lens, options)):
        kv = (k_cache, v_cache, req_to_token, req_pool_indices)
        lens = (seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens)
        return stock(self, query, output, *kv, *lens, **options)
    start = 0
    per_request = zip(
        seq_lens.tolist(), extend_seq_lens.tolist(), req_pool_indices.tolist(), strict=True
    )
    for length, new, row in per_request:
        slots = req_to_token[row, :length]
        q = query[start : start + new].transpose(0, 1).unsqueeze(0)
        whole = new == length
        mask = (
            None
            if whole or new == 1
            else torch.ones((new, length), dtype=torch.bool).tril(length - new)
        )
        attended = scaled_dot_product_attention(
            q,
            _gather(k_cache, slots, q.dtype),
            _gather(v_cache, slots, q.dtype),
            attn_mask=mask,
            is_causal=whole,
            scale=options.get("scaling"),
            enable_gqa=options.get("enable_gqa", False),
        )
        output[start : start + new] = attended.squeeze(0).transpose(0, 1)
        start += new
    return output
