"""SGLang's Triton attention kernels, called as its backend calls them, without a server.

The deterministic kernel (`extend_attention_fwd_unified`) prefills, continues and verifies; another
one decodes. tests/emulation/kernels.py interprets both, bench.gpu.kernels runs them on a GPU.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from seer_sgl.plugin.speculation.mask import full_mask

SPLIT = 256  # tokens; deterministic decoding splits contexts there


class Kv(NamedTuple):
    """The KV of a pool of slots, and the slots of requests."""

    keys: torch.Tensor  # [slots, KV heads, size]
    values: torch.Tensor
    slots: torch.Tensor  # by position [n], of every request; or [requests, n]

    def until(self, lengths: Sequence[int]) -> torch.Tensor:
        """Returns the slots of the first tokens of each request, one request after the other."""
        every = self.slots.expand(len(lengths), -1)
        return torch.cat([row[:length] for row, length in zip(every, lengths, strict=True)])


class Extension(NamedTuple):
    """The inputs of the deterministic kernel. A backend prepares them once per step."""

    starts: torch.Tensor  # int32, of the queries of each request
    kv_starts: torch.Tensor
    kv_slots: torch.Tensor
    prefixes: torch.Tensor
    mask: torch.Tensor | None
    mask_starts: torch.Tensor
    width: int


def extension(
    kv: Kv, prefixes: Sequence[int], width: int, trees: torch.Tensor | None = None
) -> Extension:
    """Returns the inputs of a step with `width` new tokens per request.

    prefixes: tokens before the new ones, per request. trees: bool [requests, width, width], which
    nodes attend to which; without them, new tokens attend to all before.
    """
    device = kv.keys.device
    before = torch.tensor(prefixes)
    lengths = before + width
    mask = None if trees is None else full_mask(trees.to(device), before.to(device), before)
    return Extension(
        torch.arange(len(prefixes) + 1, dtype=torch.int32, device=device) * width,
        _starts(lengths).to(device, torch.int32),
        kv.until(lengths.tolist()),
        before.to(device, torch.int32),
        mask,
        _starts(lengths * width).to(device),
        width,
    )


def attend(queries: torch.Tensor, kv: Kv, step: Extension) -> torch.Tensor:
    """Returns the deterministic kernel's output. queries: [requests, width, heads, size]."""
    from sglang.kernels.ops.attention import extend_attention

    flat = queries.reshape(-1, *queries.shape[2:])
    output = torch.empty_like(flat)
    extend_attention.extend_attention_fwd_unified(
        flat,
        output,
        kv.keys,
        kv.values,
        1.0,
        1.0,
        step.starts,
        step.kv_starts,
        step.kv_slots,
        step.prefixes,
        step.width,
        custom_mask=step.mask,
        mask_indptr=step.mask_starts,
        sm_scale=queries.shape[-1] ** -0.5,
        is_causal=True,
    )
    return output.view(queries.shape)


class Decoding(NamedTuple):
    """The inputs of the decode kernel, whose splits are those of deterministic inference."""

    kv_starts: torch.Tensor
    kv_slots: torch.Tensor
    partial: torch.Tensor
    partial_lse: torch.Tensor
    splits: torch.Tensor
    most_splits: int


def decoding(kv: Kv, lengths: Sequence[int], heads: int) -> Decoding:
    """Returns the inputs of a step with one new token per request, the last of `lengths`."""
    device, count, size = kv.keys.device, len(lengths), kv.values.shape[-1]
    splits = [-(-length // SPLIT) for length in lengths]
    most = max(splits)
    return Decoding(
        _starts(torch.tensor(lengths)).to(device, torch.int32),
        kv.until(lengths),
        torch.empty((count, heads, most, size), device=device),
        torch.empty((count, heads, most), device=device),
        torch.tensor(splits, dtype=torch.int32, device=device),
        most,
    )


def decode(queries: torch.Tensor, kv: Kv, step: Decoding) -> torch.Tensor:
    """Returns the decode kernel's output. queries: [requests, heads, size]."""
    from sglang.kernels.ops.attention import decode_attention

    output = torch.empty_like(queries)
    decode_attention.decode_attention_fwd(
        queries,
        kv.keys,
        kv.values,
        output,
        step.kv_starts,
        step.kv_slots,
        step.partial,
        step.partial_lse,
        step.splits,
        step.most_splits,
        queries.shape[-1] ** -0.5,
        1.0,
        1.0,
    )
    return output


def chain(width: int, requests: int = 1) -> torch.Tensor:
    """Returns the trees of drafts without branches."""
    return torch.ones((width, width), dtype=torch.bool).tril().expand(requests, -1, -1)


def gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the largest difference; 0 means equal bits."""
    return float((one.double() - other.double()).abs().max())


def _starts(counts: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
