"""Which kernels of a step are equal to the bit on this GPU, and how long they take.

`python -m bench.gpu.kernels OUT.json` needs SGLang's Python and no server, and takes about a
minute. `bits`: the largest difference from a token's own step (0: equal bits), by kind of step,
compiled; with `float32`, products are computed in float32 if TRITON_F32_DEFAULT=ieee is set.
`attention`: one layer in a CUDA graph, by width, requests and context, beside the kernel that
decodes. `by node`: a chain of drafts as decode steps, one per node. `flash_bits` and
`flash_attention`: the same for FlashAttention 3, where it is installed. `products`: the layers of
Qwen2.5-1.5B and 7B with deterministic inference and without, in a CUDA graph. `sampling`: seeded
draws by nodes, plain and with top-p, launches included. `moves`: KV of accepted nodes, all layers.
`--only products,moves` measures these. `--device cpu` runs small sizes, for a test of this program
in Triton's interpreter.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import flash
from .attention import Kv, attend, chain, decode, decoding, extension, gap
from .machine import has_fa3, require_gpu, write_json
from .shapes import SIZES

PROGRAM = "bench.gpu.kernels"
LAYERS = 28
ROUNDS = 20
CALLS = 10  # in a CUDA graph
BY_NODE = " by node"
MODELS = ("1.5b", "7b")


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

    def cases(self) -> Iterator[tuple[Heads, int, int]]:
        """Yields heads, requests and context of each measurement that fits into the slots."""
        for heads, count, context in itertools.product(self.heads, self.requests, self.contexts):
            if count * (context + max(self.widths)) <= self.slots:
                yield heads, count, context


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
        row[f"chain{BY_NODE}"] = _gap_by_node(new, kv, prefix, heads.query)
        yield row


def _gap_by_node(new: torch.Tensor, kv: Kv, prefix: int, heads: int) -> float:
    """Returns the difference between decoding the nodes of a chain at once and one by one."""
    nodes, lengths = new[0], [prefix + 1 + i for i in range(new.shape[1])]
    together = decode(nodes, kv, decoding(kv, lengths, heads))
    steps = [decoding(kv, [length], heads) for length in lengths]
    alone = [decode(nodes[i : i + 1], kv, step) for i, step in enumerate(steps)]
    return gap(together, torch.cat(alone))


def attention(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds of one layer by width; `decode`: of the kernel that decodes."""
    widest = max(sizes.widths)
    for heads, count, context in sizes.cases():
        slots = torch.randperm(count * (context + widest), device=device).view(count, -1)
        kv = pool(heads, slots, sizes.dtypes[0])
        row: dict[str, Any] = {"heads": heads, "requests": count, "context": context}
        shape = (count, widest, heads.query, heads.size)
        queries = torch.randn(shape, dtype=sizes.dtypes[0], device=device)
        for width in sizes.widths:
            step = extension(kv, [context] * count, width, chain(width, count))
            some = queries[:, :width].contiguous()
            row[str(width)] = captured(lambda: attend(some, kv, step), device)  # noqa: B023
            by_node = Kv(kv.keys, kv.values, slots.repeat_interleave(width, 0))
            steps = decoding(by_node, [context + 1 + i for i in range(width)] * count, heads.query)
            nodes = some.flatten(0, 1)
            name = f"{width}{BY_NODE}" if width > 1 else "decode"
            row[name] = captured(lambda: decode(nodes, kv, steps), device)  # noqa: B023
        yield row


def flash_bits(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields how steps of FlashAttention 3 compare with steps of one token, without splits."""
    prefix, widest = sizes.prefix, max(sizes.widths)
    for heads, page in itertools.product(sizes.heads, flash.PAGES):
        cache = flash.cache((heads.kv, heads.size), 2, prefix + widest, page, device)
        shape = (2, prefix + widest, heads.query, heads.size)
        queries = torch.randn(shape, dtype=torch.bfloat16, device=device)
        new = queries[:, prefix:]
        steps = [
            flash.attend(new[:, i : i + 1], cache, [prefix + 1 + i] * 2) for i in range(widest)
        ]
        alone = torch.cat(steps, 1)
        row: dict[str, Any] = {"heads": heads, "page": page}
        for width in sizes.widths:
            some = flash.attend(new[:, :width], cache, [prefix + width] * 2)
            row[f"chain of {width}"] = gap(some, alone[:, :width])
        lengths = [prefix + 1 + i for i in range(widest)] * 2
        nodes = flash.attend(new.flatten(0, 1)[:, None], cache.repeated(widest), lengths)
        row[f"chain{BY_NODE}"] = gap(nodes.view(alone.shape), alone)
        ragged = flash.attend(new, cache, [prefix // 2, prefix + widest])
        row["chain in a batch"] = gap(ragged[1], alone[1])
        whole = flash.attend(queries, cache, [prefix + widest] * 2)
        row["prefill"] = gap(whole[:, prefix:], alone)
        split = flash.attend(new[:, :1], cache, [prefix + 1] * 2, splits=0)
        row["splits"] = gap(split, alone[:, :1])
        yield row


def flash_attention(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds of one layer of FlashAttention 3; `splits`: it may split contexts."""
    widest = max(sizes.widths)
    for heads, count, context in sizes.cases():
        cache = flash.cache((heads.kv, heads.size), count, context + widest, flash.PAGES[0], device)
        shape = (count, widest, heads.query, heads.size)
        queries = torch.randn(shape, dtype=torch.bfloat16, device=device)
        row: dict[str, Any] = {"heads": heads, "requests": count, "context": context}
        for width, splits in itertools.product(sizes.widths, (1, 0)):
            name = str(width) if splits else f"{width} splits"
            some = queries[:, :width].contiguous()
            chains = flash.step(cache, [context + width] * count, width, splits)
            row[name] = captured(lambda: chains(some), device)  # noqa: B023
            if width > 1:
                lengths = [context + 1 + i for i in range(width)] * count
                steps = flash.step(cache.repeated(width), lengths, 1, splits)
                nodes = some.flatten(0, 1)[:, None]
                row[f"{name}{BY_NODE}"] = captured(lambda: steps(nodes), device)  # noqa: B023
        yield row


def products(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds of a layer's products by rows: SGLang's kernel of deterministic
    inference, and the one that PyTorch chooses. `gap`: between the first row and its own product.
    """
    from sglang.srt.batch_invariant_ops.batch_invariant_ops import (
        ENABLE_JIT_DEEPGEMM,
        matmul_persistent,
    )

    for size, rows in itertools.product(MODELS, sizes.nodes):
        for layer, (inputs, outputs) in layers(size).items():
            given = torch.randn((rows, inputs), dtype=torch.bfloat16, device=device)
            weights = torch.randn((outputs, inputs), dtype=torch.bfloat16, device=device).t()
            every = matmul_persistent(given, weights)
            yield {
                "model": size,
                "rows": rows,
                "layer": layer,
                "deep_gemm": ENABLE_JIT_DEEPGEMM,
                "gap": gap(every[:1], matmul_persistent(given[:1], weights)),
                "invariant": captured(lambda: matmul_persistent(given, weights), device),  # noqa: B023
                "torch": captured(lambda: given @ weights, device),  # noqa: B023
            }


def layers(size: str) -> dict[str, tuple[int, int]]:
    """Returns the inputs and outputs of a model's products, by name."""
    model = SIZES[size]
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    kv = 2 * model["num_key_value_heads"] * (hidden // model["num_attention_heads"])
    return {
        "qkv": (hidden, hidden + kv),
        "o": (hidden, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
        "head": (hidden, model["vocab_size"]),
    }


def sampling(sizes: Sizes, device: str) -> Iterator[dict[str, Any]]:
    """Yields the microseconds and the bytes of seeded draws, from logits on, by nodes."""
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    from seer_sgl.plugin.batch_invariant_sampling import draw_by_column

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


def captured(call: Callable[[], object], device: str) -> float:
    """Returns the microseconds of a call in a CUDA graph of some calls, the median of some
    replays; on a CPU, as `microseconds`."""
    if device == "cpu":
        return microseconds(call, device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    return round(microseconds(graph.replay, device) / CALLS, 1)


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
    parser.add_argument("--only", default="", help="kinds of figures, comma-separated")
    options = parser.parse_args()
    if options.device == "cuda":
        require_gpu(PROGRAM)
    torch.manual_seed(0)
    sizes = GPU if options.device == "cuda" else SMALL
    figures: dict[str, list[dict[str, Any]]] = {}
    on_gpu = options.device == "cuda"
    with_flash = (flash_bits, flash_attention) if on_gpu and has_fa3() else ()
    with_gpu = (*with_flash, products) if on_gpu else ()
    every = {one.__name__: one for one in (bits, attention, *with_gpu, sampling, moves)}
    only = options.only.split(",") if options.only else list(every)
    if unknown := set(only) - every.keys():
        parser.error(f"--only: {min(unknown)!r} is none of {', '.join(every)}")
    for kind in map(every.__getitem__, only):
        for row in kind(sizes, options.device):
            figures.setdefault(kind.__name__, []).append(row)
            print(kind.__name__, row, flush=True)
            write_json(options.out, figures)


if __name__ == "__main__":
    main()
