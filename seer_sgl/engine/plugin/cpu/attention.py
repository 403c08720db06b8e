"""`torch_native` extend that computes only the new rows.

Stock SGLang pads the query of a continuation to the whole sequence, so that a chunk with a full
cache hit still costs O(length^2). Chunks are continuations: here they cost what their new tokens
cost, as they do with the GPU backends.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def extend_new_rows_only(  # noqa: PLR0917 (SGLang's signature)
    stock: Callable[..., torch.Tensor],
    self: Any,
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
    """Around `TorchNativeAttnBackend._run_sdpa_forward_extend`, with its shapes.

    query, output: [new tokens of all requests, heads, head size]; k_cache, v_cache:
    [KV slots, KV heads, head size]. Encoder, non-causal and sliding-window layers stay stock.
    """
    window = options.get("sliding_window_size")
    plain = options.get("causal") and not options.get("is_cross_attn") and encoder_lens is None
    if not plain or (window is not None and window > -1):
        return stock(
            self,
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            seq_lens,
            extend_prefix_lens,
            extend_seq_lens,
            encoder_lens,
            **options,
        )
    start = 0
    per_request = zip(
        seq_lens.tolist(), extend_seq_lens.tolist(), req_pool_indices.tolist(), strict=True
    )
    for length, new, row in per_request:
        slots = req_to_token[row, :length].long()
        # [tokens, heads, size] -> [1, heads, tokens, size]
        q = query[start : start + new].transpose(0, 1).unsqueeze(0)
        k = k_cache[slots].transpose(0, 1).unsqueeze(0).to(q.dtype)
        v = v_cache[slots].transpose(0, 1).unsqueeze(0).to(q.dtype)
        whole = new == length
        mask = (
            None
            if whole or new == 1
            else torch.ones((new, length), dtype=torch.bool).tril(length - new)
        )
        attended = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=whole,
            scale=options.get("scaling"),
            enable_gqa=options.get("enable_gqa", False),
        )
        output[start : start + new] = attended.squeeze(0).transpose(0, 1)
        start += new
    return output
