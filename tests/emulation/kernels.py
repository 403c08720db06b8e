"""A test program: SGLang's Triton attention kernels in Triton's interpreter, compared bit by bit.

It compares the kernel of deterministic inference that prefills, continues and verifies with itself
and with the kernel that decodes, in float32 and with the block sizes for an H100. The masks are
ours. Run with TRITON_INTERPRET=1; prints figures as JSON.

What it shows is the order in which a kernel visits and adds blocks. It cannot show what a compiler
makes of a kernel, the order of terms within a matrix unit, or half precisions.
"""

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.kernels.ops.attention import decode_attention, extend_attention

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import lay_out
from seer_sgl.plugin.speculation.mask import full_mask
from tests.emulation.interpreter import add_terms_in_order

HEADS, KV_HEADS, SIZE, SLOTS = 4, 2, 32, 800
SCALE = SIZE**-0.5
PREFIX, WIDEST = 123, 9  # the draft crosses the boundary between two blocks of 64 tokens
SPLIT = 256  # tokens; deterministic decoding splits contexts there


class Kv(NamedTuple):
    """The KV of one request in a pool of slots."""

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor  # by position


def attend(
    queries: torch.Tensor, kv: Kv, prefixes: list[int], mask: torch.Tensor | None
) -> torch.Tensor:
    """Returns the deterministic prefill kernel's output.

    queries: [requests, new tokens, heads, size]; all requests have the same KV. prefixes: tokens
    before the new ones, per request.
    """
    requests, width = queries.shape[:2]
    lengths = torch.tensor([prefix + width for prefix in prefixes])
    flat = queries.reshape(-1, HEADS, SIZE)
    output = torch.empty_like(flat)
    extend_attention.extend_attention_fwd_unified(
        flat,
        output,
        kv.keys,
        kv.values,
        1.0,
        1.0,
        torch.arange(requests + 1, dtype=torch.int32) * width,
        _starts(lengths).to(torch.int32),
        torch.cat([kv.slots[:length] for length in lengths.tolist()]),
        torch.tensor(prefixes, dtype=torch.int32),
        width,
        custom_mask=mask,
        mask_indptr=_starts(lengths * width),
        sm_scale=SCALE,
        is_causal=True,
    )
    return output.view(queries.shape)


def verify(queries: torch.Tensor, kv: Kv, prefixes: list[int], trees: torch.Tensor) -> torch.Tensor:
    """Returns the output of a verification. trees: bool [requests, nodes, nodes]."""
    lengths = torch.tensor(prefixes)
    return attend(queries, kv, prefixes, full_mask(trees, lengths, lengths))


def decode(query: torch.Tensor, kv: Kv, length: int) -> torch.Tensor:
    """Returns the deterministic decode kernel's output for the last of `length` tokens."""
    output = torch.empty((1, HEADS, SIZE))
    splits = -(-length // SPLIT)
    decode_attention.decode_attention_fwd(
        query.reshape(1, HEADS, SIZE),
        kv.keys,
        kv.values,
        output,
        torch.tensor([0, length], dtype=torch.int32),
        kv.slots[:length],
        torch.empty((1, HEADS, splits, SIZE)),
        torch.empty((1, HEADS, splits)),
        torch.tensor([splits], dtype=torch.int32),
        splits,
        SCALE,
        1.0,
        1.0,
    )
    return output[0]


def exact(query: torch.Tensor, kv: Kv, length: int) -> torch.Tensor:
    """Returns the attention of the last of `length` tokens, computed in float64."""
    slots, shared = kv.slots[:length], HEADS // KV_HEADS
    keys = kv.keys[slots].double().repeat_interleave(shared, 1)
    values = kv.values[slots].double().repeat_interleave(shared, 1)
    scores = torch.einsum("hd,nhd->hn", query.double(), keys) * SCALE
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)


def _starts(counts: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _chain(width: int) -> torch.Tensor:
    return torch.ones((1, width, width), dtype=torch.bool).tril()


def chains(kv: Kv, queries: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns the outputs of the newest tokens, verified one by one, and how others compare."""
    new = queries[:, PREFIX:]
    alone = torch.cat(
        [verify(new[:, i : i + 1], kv, [PREFIX + i], _chain(1)) for i in range(WIDEST)], 1
    )
    figures: dict[str, Any] = {
        f"chain of {width}": _gap(
            verify(new[:, :width], kv, [PREFIX], _chain(width)), alone[:, :width]
        )
        for width in (3, 5, WIDEST)
    }
    shorter = new.flip(1)  # another request of the batch, with another length
    both = verify(
        torch.cat([shorter, new]), kv, [PREFIX - 70, PREFIX], _chain(WIDEST).repeat(2, 1, 1)
    )
    figures["chain in a batch"] = _gap(both[1:], alone)
    figures["prefill"] = _gap(attend(queries, kv, [0], None)[:, PREFIX:], alone)
    figures["continuation"] = _gap(attend(new, kv, [PREFIX], None), alone)
    figures["float64"] = max(
        _gap(alone[0, i], exact(new[0, i], kv, PREFIX + i + 1)) for i in range(WIDEST)
    )
    return alone, figures


def tree_path(kv: Kv, queries: torch.Tensor, alone: torch.Tensor, random: torch.Generator) -> float:
    """Returns the gap between a path of a tree, beside other branches, and the chain."""
    parents = [[-1, -1, 0, 1, 3, 2, 4, 5]]
    path = [0, 2, 4, 5]  # the second child of the root, its child, and its child
    none = np.zeros((1, 8), np.int32)
    drafts = Drafts(
        none,
        np.array(parents, np.int32),
        none.astype(np.float32),
        none,
        np.array([8], np.int32),
        none[0, :1],
    )
    tree = torch.from_numpy(lay_out([0], drafts, WIDEST).mask)
    nodes = torch.randn(1, WIDEST, HEADS, SIZE, generator=random)
    keys, values = kv.keys.clone(), kv.values.clone()
    slots = kv.slots[PREFIX : PREFIX + WIDEST]
    for cache in (keys, values):
        chain = cache[slots].clone()
        cache[slots] = torch.randn(chain.shape, generator=random)
        cache[slots[path]] = chain[: len(path)]
    nodes[:, path] = queries[:, PREFIX : PREFIX + len(path)]
    output = verify(nodes, Kv(keys, values, kv.slots), [PREFIX], tree)
    return _gap(output[:, path], alone[:, : len(path)])


def main() -> None:
    """Prints the largest difference of each comparison; 0 means equal bits."""
    add_terms_in_order()
    extend_attention._is_cuda, extend_attention.CUDA_CAPABILITY = True, (9, 0)
    random = torch.Generator().manual_seed(0)
    kv = Kv(
        torch.randn(SLOTS, KV_HEADS, SIZE, generator=random),
        torch.randn(SLOTS, KV_HEADS, SIZE, generator=random),
        torch.randperm(SLOTS, generator=random),
    )
    queries = torch.randn(1, PREFIX + WIDEST, HEADS, SIZE, generator=random)
    alone, figures = chains(kv, queries)
    figures["tree"] = tree_path(kv, queries, alone, random)
    query = queries[:, :1]
    figures["decode"] = {
        length: _gap(decode(query[0, 0], kv, length), attend(query, kv, [length - 1], None)[0, 0])
        for length in (6, 64, 65, 201, 301, 601)
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
