"""Does SGLang move KV rows correctly where a tree's accepted path overlaps its targets?

`python -m bench.gpu.kv_moves OUT.json`. SGLang's Triton kernel loads all rows of a tile and then
stores them, but nothing orders the loads of one warp before the stores of another. A tree's
accepted path (rows 0, 2, 4) moves to rows 0, 1, 2, so a late load could read a row that was
overwritten. Each round compares a move with an index copy through a temporary, while a matrix
product runs on a second stream. `SGLANG_NATIVE_MOVE_KV_CACHE=1` avoids the kernel.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from .machine import require_gpu, write_json

PROGRAM = "bench.gpu.kv_moves"
LAYERS, ROWS, HEADS = 28, 4096, 2 * 128  # KV of Qwen2.5-1.5B's shape
WIDTH, KEPT, BATCH = 9, 5, 28  # nodes of a tree, rows of its accepted path, requests
# As SGLang's MHATokenToKVPool chooses them for rows of 512 bytes.
TILES = {"bytes_per_tile": 128, "byte_tiles": 4, "num_warps": 4, "num_locs_upper": 256}


def wrong_copies(rounds: int) -> int:
    """Returns how many of `rounds` x 2 x LAYERS buffers differ from a copy through a temporary."""
    import torch
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_func

    on: dict[str, Any] = {"device": "cuda"}
    buffers = [torch.randn(ROWS, HEADS, dtype=torch.bfloat16, **on) for _ in range(2 * LAYERS)]
    pointers = torch.tensor([one.data_ptr() for one in buffers], dtype=torch.uint64, **on)
    strides = torch.tensor([HEADS * 2] * len(buffers), dtype=torch.int64, **on)
    noise, second = torch.randn(4096, 4096, **on), torch.cuda.Stream()
    wrong = 0
    for _ in range(rounds):
        begins = torch.randperm(ROWS // 16, **on)[:BATCH, None] * 16
        path = torch.rand(BATCH, WIDTH - 1, **on).argsort(1)[:, : KEPT - 1].sort(1).values + 1
        root = torch.zeros(BATCH, 1, dtype=torch.int64, **on)
        source = (begins + torch.cat([root, path], 1)).view(-1)
        target = (begins + torch.arange(KEPT, **on)).view(-1)
        wanted = [one[source] for one in buffers]
        with torch.cuda.stream(second):
            noise @ noise
        count = len(target)
        upper = 1 << (count - 1).bit_length()
        copy_all_layer_kv_cache_func(pointers, strides, target, source, count, upper, TILES)
        torch.cuda.synchronize()
        wrong += sum(
            not torch.equal(one[target], rows) for one, rows in zip(buffers, wanted, strict=True)
        )
    return wrong


def main() -> None:
    """Writes and prints the count of wrong copies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    require_gpu(PROGRAM)
    began = time.monotonic()
    wrong = wrong_copies(options.rounds)
    figures = {
        "copies": options.rounds * 2 * LAYERS,
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }
    write_json(options.out, figures)
    print(f"{wrong} of {figures['copies']} copies wrong")


if __name__ == "__main__":
    main()
