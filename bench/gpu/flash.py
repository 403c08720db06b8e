"""FlashAttention 3, called as SGLang's backend calls it, without a server."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

PAGES = (64, 1)  # tokens: with a KV pool, and without
Step = Callable[[torch.Tensor], torch.Tensor]  # queries and output: [requests, width, heads, size]


class Cache(NamedTuple):
    """The KV of requests, in pages."""

    keys: torch.Tensor  # [pages, tokens per page, KV heads, size]
    values: torch.Tensor
    pages: torch.Tensor  # int32 [requests, pages of a request]

    def repeated(self, times: int) -> "Cache":
        """Returns the same KV for each node of the requests."""
        return self._replace(pages=self.pages.repeat_interleave(times, 0))


def cache(heads: tuple[int, int], requests: int, tokens: int, page: int, device: str) -> Cache:
    """Returns random KV in pages that are not in order. heads: their number and size."""
    each = -(-tokens // page)
    shape = (requests * each, page, *heads)
    keys, values = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    pages = torch.randperm(requests * each, dtype=torch.int32, device=device)
    return Cache(keys, values, pages.view(requests, each))


def step(cache: Cache, lengths: Sequence[int], width: int, splits: int = 1) -> Step:
    """Returns a step with `width` queries per request, the last of `lengths` tokens. splits: 1, as
    with deterministic inference; 0: as many as the kernel chooses."""
    from sglang.kernels.ops.attention.flash_attention import flash_attn_with_kvcache

    device = cache.keys.device
    count = len(lengths)
    known = torch.tensor(lengths, dtype=torch.int32, device=device)
    starts = torch.arange(count + 1, dtype=torch.int32, device=device) * width
    kv_starts = torch.cat([starts[:1], known.cumsum(0).to(torch.int32)])

    def run(queries: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = flash_attn_with_kvcache(
            q=queries.flatten(0, 1),
            k_cache=cache.keys,
            v_cache=cache.values,
            page_table=cache.pages,
            cache_seqlens=known,
            cu_seqlens_q=starts,
            cu_seqlens_k_new=kv_starts,
            max_seqlen_q=width,
            softmax_scale=queries.shape[-1] ** -0.5,
            causal=True,
            num_splits=splits,
        )
        return output.view(queries.shape)

    return run


def attend(
    queries: torch.Tensor, cache: Cache, lengths: Sequence[int], splits: int = 1
) -> torch.Tensor:
    """Returns the output of such a step."""
    return step(cache, lengths, queries.shape[1], splits)(queries.contiguous())
