"""Which kernels of a step are equal to the bit on this GPU, and how long they take.

`python -m bench.gpu.kernels OUT.json` needs SGLang's Python and no server, and takes about a
minute. `bits`: the largest difference from a token's own step (0: equal bits), by kind of step,
compiled; with `float32`, products are computed in float32 if TRITON_F32_DEFAULT=ieee is set.
`attention`: one layer, by width, requests and context, beside the kernel that decodes. `sampling`:
seeded draws by nodes, plain and with top-p. `moves`: KV of accepted nodes, all layers.
`--device cpu` runs small sizes, for a test of this program in Triton's interpreter.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .attention import Kv, attend, chain, decode, decoding, extension, gap
from .machine import require_gpu, write_json

PROGRAM = "bench.gpu.kernels"
LAYERS = 28
ROUNDS = 20


class Heads(NamedTuple):
    """The attention heads of a model, on one GPU."""

    query: int
    kv: int
    size: int


class Sizes(NamedTuple):
    """What is measured. words: of the vocabulary."""

    heads: Sequence[Heads]
    dtypes: Sequence[torch.dtype]
    prefix: int
    widths: Sequence[int]
    requests: Sequence[int]
    contexts: Sequence[int]
    slots: int  # at most, of one measurement
    nodes: Sequence[int]
    words: int


GPU = Sizes(
    heads=(Heads(12, 2, 128), Heads(28, 4, 128), Heads(8, 1, 128)),
    dtypes=(torch.bfloat16, torch.float32),
    prefix=1019,
    widths=(1, 5, 17),
    requests=(1, 16, 128),
    contexts=(1024, 8192, 32768),
    slots=1 << 20,
    nodes=(1, 16, 128, 640),
    words=151_936,
)
SMALL = Sizes((Heads(4, 2, 32),), (torch.float32,), 70, (1, 5), (1, 2), (64,), 1 << 12, (1, 4), 100)


def pool(heads: Heads, slots: torch.Tensor, dtype: torch.dtype) -> Kv:
    """Returns random KV. slots: see Kv."""
    shape = (int(slots.max()) + 1, heads.kv, heads.size)
    keys, values = (torch.randn(shape, dtype=dtype, device=slots.device) for _ in range(2))
    return Kv(keys, values, slots)


def bits(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields how steps compare with steps of one token of the deterministic kernel."""
    for heads, dtype in itertools.product(sizes.heads, sizes.dtypes):
        prefix, widest = sizes.prefix, max(sizes.widths)
        kv = pool(heads, torch.randperm(prefix + widest, device=device), dtype)
        shape = (1, prefix + widest, heads.query, heads.size)
        queries = torch.randn(shape, dtype=dtype, device=device)
        new = queries[:, prefix:]
        alone = torch.cat(
            [
                attend(new[:, i : i + 1], kv, extension(kv, [prefix + i], 1, chain(1)))
                for i in range(widest)
            ],
            1,
        )
        row: dict[str, Any] = {"heads": heads, "dtype": str(dtype)}
        for width in sizes.widths:
            step = extension(kv, [prefix], width, chain(width))
            row[f"chain of {width}"] = gap(attend(new[:, :width], kv, step), alone[:, :width])
        step = extension(kv, [prefix // 2, prefix], widest, chain(widest, 2))
        both = torch.cat([new.flip(1), new])
        row["chain in a batch"] = gap(attend(both, kv, step)[1:], alone)
        row["continuation"] = gap(attend(new, kv, extension(kv, [prefix], widest)), alone)
        whole = attend(queries, kv, extension(kv, [0], prefix + widest))
        row["prefill"] = gap(whole[:, prefix:], alone)
        lengths = [prefix + 1]
        decoded = decode(new[:, 0].contiguous(), kv, decoding(kv, lengths, heads.query))
        row["decode"] = gap(decoded, alone[:, 0])
        yield row


def attention(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds of one layer by width; `decode`: of the kernel that decodes."""
    for heads, count, context in itertools.product(sizes.heads, sizes.requests, sizes.contexts):
        widest = max(sizes.widths)
        if count * (context + widest) > sizes.slots:
            continue
        slots = torch.randperm(count * (context + widest), device=device).view(count, -1)
        kv = pool(heads, slots, sizes.dtypes[0])
        row: dict[str, Any] = {"heads": heads, "requests": count, "context": context}
        shape = (count, widest, heads.query, heads.size)
        queries = torch.randn(shape, dtype=sizes.dtypes[0], device=device)
        for width in sizes.widths:
            step = extension(kv, [context] * count, width, chain(width, count))
            some = queries[:, :width].contiguous()
            row[str(width)] = microseconds(lambda: attend(some, kv, step), device)  # noqa: B023
        plain = decoding(kv, [context + 1] * count, heads.query)
        newest = queries[:, 0].contiguous()
        row["decode"] = microseconds(lambda: decode(newest, kv, plain), device)  # noqa: B023
        yield row


def sampling(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds and the bytes of seeded draws, from logits on, by nodes."""
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    from seer_sgl.plugin.noise import draw_by_column

    for nodes in sizes.nodes:
        logits = torch.randn((nodes, sizes.words), device=device)
        seeds = torch.arange(nodes, device=device)
        every = torch.full((nodes,), sizes.words, dtype=torch.int32, device=device)
        top_p, nothing = torch.full((nodes,), 0.9, device=device), torch.zeros(nodes, device=device)

        def plain() -> Any:
            return sampling_from_probs_torch(
                logits.softmax(-1),  # noqa: B023
                sampling_seed=seeds,  # noqa: B023
                positions=seeds,  # noqa: B023
            )

        def filtered() -> Any:
            return draw_by_column(
                sampling_from_probs_torch,
                logits.softmax(-1),  # noqa: B023
                every,  # noqa: B023
                top_p,  # noqa: B023
                nothing,  # noqa: B023
                False,
                seeds,  # noqa: B023
                seeds,  # noqa: B023
            )

        for name, draw in (("plain", plain), ("top-p", filtered)):
            time_us = microseconds(draw, device)
            row = {"nodes": nodes, "filter": name, "us": time_us, "us_per_node": time_us / nodes}
            if device != "cpu":
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                draw()
                used = torch.cuda.max_memory_allocated() - before
                row["bytes_per_word"] = used / logits.numel()
            yield row


def moves(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds of SGLang's native move for all layers, by rows that move."""
    heads = sizes.heads[0]
    layers = [
        pool(heads, torch.arange(sizes.slots >> 4, device=device), sizes.dtypes[0])
        for _ in range(LAYERS)
    ]
    for count in sizes.requests:
        rows = torch.arange(count * max(sizes.widths), device=device)

        def move() -> None:
            for kv in layers:
                kv.keys[rows] = kv.keys[rows]  # noqa: B023
                kv.values[rows] = kv.values[rows]  # noqa: B023

        yield {"rows": len(rows), "layers": LAYERS, "us": microseconds(move, device)}


def microseconds(call: Callable[[], object], device: str) -> float:
    """Returns the median of some calls, launches included; the first ones compile."""
    wait = torch.get_device_module(device).synchronize
    for _ in range(3):
        call()
    found = []
    for _ in range(ROUNDS):
        wait()
        began = time.perf_counter()
        call()
        wait()
        found.append(1e6 * (time.perf_counter() - began))
    return round(statistics.median(found), 1)


def main() -> None:
    """Writes the figures after each kind, and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda":
        require_gpu(PROGRAM)
    torch.manual_seed(0)
    sizes = GPU if options.device == "cuda" else SMALL
    figures: dict[str, list[dict[str, Any]]] = {}
    for kind in (bits, attention, sampling, moves):
        for row in kind(sizes, options.device):
            figures.setdefault(kind.__name__, []).append(row)
            print(kind.__name__, row, flush=True)
            write_json(options.out, figures)


if __name__ == "__main__":
    main()
