"""A test program: SGLang's Triton attention kernels in Triton's interpreter, compared bit by bit.

It compares the kernel of deterministic inference that prefills, continues and verifies with itself
and with the kernel that decodes, in float32 and with the block sizes for an H100. The masks are
ours. Run with TRITON_INTERPRET=1; prints figures as JSON.

What it shows is the order in which a kernel visits and adds blocks. It cannot show what a compiler
makes of a kernel, the order of terms within a matrix unit, or half precisions.
"""

import json
from typing import Any

import torch
from sglang.kernels.ops.attention import extend_attention

from bench.gpu import attention
from bench.gpu.attention import Kv, chain, extension, gap
from seer_sgl.draft.tree import lay_out
from tests.draft.trees import as_drafts
from tests.emulation.interpreter import add_terms_in_order

HEADS, KV_HEADS, SIZE, SLOTS = 4, 2, 32, 800
SCALE = SIZE**-0.5
PREFIX, WIDEST = 123, 9  # the draft crosses the boundary between two blocks of 64 tokens


def attend(
    queries: torch.Tensor, kv: Kv, prefixes: list[int], trees: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the deterministic kernel's output for new tokens after `prefixes`.

    trees: bool [requests, nodes, nodes], of a verification.
    """
    return attention.attend(queries, kv, extension(kv, prefixes, queries.shape[1], trees))


def decode(query: torch.Tensor, kv: Kv, length: int) -> torch.Tensor:
    """Returns the deterministic decode kernel's output for the last of `length` tokens."""
    step = attention.decoding(kv, [length], HEADS)
    return attention.decode(query.reshape(1, HEADS, SIZE), kv, step)[0]


def exact(query: torch.Tensor, kv: Kv, length: int) -> torch.Tensor:
    """Returns the attention of the last of `length` tokens, computed in float64."""
    slots, shared = kv.slots[:length], HEADS // KV_HEADS
    keys = kv.keys[slots].double().repeat_interleave(shared, 1)
    values = kv.values[slots].double().repeat_interleave(shared, 1)
    scores = torch.einsum("hd,nhd->hn", query.double(), keys) * SCALE
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)


def chains(kv: Kv, queries: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns the outputs of the newest tokens, verified one by one, and how others compare."""
    new = queries[:, PREFIX:]
    alone = torch.cat(
        [attend(new[:, i : i + 1], kv, [PREFIX + i], chain(1)) for i in range(WIDEST)], 1
    )
    figures: dict[str, Any] = {
        f"chain of {width}": gap(
            attend(new[:, :width], kv, [PREFIX], chain(width)), alone[:, :width]
        )
        for width in (3, 5, WIDEST)
    }
    shorter = new.flip(1)  # another request of the batch, with another length
    both = attend(torch.cat([shorter, new]), kv, [PREFIX - 70, PREFIX], chain(WIDEST, 2))
    figures["chain in a batch"] = gap(both[1:], alone)
    figures["prefill"] = gap(attend(queries, kv, [0])[:, PREFIX:], alone)
    figures["continuation"] = gap(attend(new, kv, [PREFIX]), alone)
    figures["float64"] = max(
        gap(alone[0, i], exact(new[0, i], kv, PREFIX + i + 1)) for i in range(WIDEST)
    )
    return alone, figures


def tree_path(kv: Kv, queries: torch.Tensor, alone: torch.Tensor, random: torch.Generator) -> float:
    """Returns the gap between a path of a tree, beside other branches, and the chain."""
    path = [0, 2, 4, 5]  # the second child of the root, its child, and its child
    drafts = as_drafts([[(parent, 0) for parent in (-1, -1, 0, 1, 3, 2, 4, 5)]])
    tree = torch.from_numpy(lay_out(drafts, WIDEST).mask)
    nodes = torch.randn(1, WIDEST, HEADS, SIZE, generator=random)
    keys, values = kv.keys.clone(), kv.values.clone()
    slots = kv.slots[PREFIX : PREFIX + WIDEST]
    for cache in (keys, values):
        chain = cache[slots].clone()
        cache[slots] = torch.randn(chain.shape, generator=random)
        cache[slots[path]] = chain[: len(path)]
    nodes[:, path] = queries[:, PREFIX : PREFIX + len(path)]
    output = attend(nodes, Kv(keys, values, kv.slots), [PREFIX], tree)
    return gap(output[:, path], alone[:, : len(path)])


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
        length: gap(decode(query[0, 0], kv, length), attend(query, kv, [length - 1])[0, 0])
        for length in (6, 64, 65, 201, 301, 601)
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
