"""Times a step of attention on a CPU: SGLang's own `torch_native` against our hooks.

`python -m bench.attention --json` times one layer of the reasoning model at growing context, for a
continuation and for a decode step. A continuation is one new token on a full cache hit: every chunk
begins with one. The two arms alternate within one run; figures are medians in microseconds.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from seer_sgl.link import contract
from seer_sgl.plugin import cpu

HEADS, KV_HEADS, HEAD_SIZE, KV_SLOTS = 4, 2, 32, 16_384
CONTEXTS = (256, 1024, 2048, 4096, 6144)


def arms(context: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Returns {operation: {arm: call}} on one request of `context` tokens."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend as Stock

    from seer_sgl.plugin.cpu.attention import decode_grouped, extend_new_rows_only

    backend = object.__new__(Stock)  # the timed methods use none of its attributes
    k_cache = torch.randn(KV_SLOTS, KV_HEADS, HEAD_SIZE)
    v_cache = torch.randn(KV_SLOTS, KV_HEADS, HEAD_SIZE)
    req_to_token = torch.randperm(KV_SLOTS)[:context].to(torch.int32).unsqueeze(0)
    query = torch.randn(1, HEADS, HEAD_SIZE)
    output = torch.zeros_like(query)
    length = torch.tensor([context])
    common = (query, output, k_cache, v_cache, req_to_token, torch.tensor([0]), length)
    extend = (*common, length - 1, torch.tensor([1]))
    options = {"scaling": HEAD_SIZE**-0.5, "enable_gqa": True}
    causal = options | {"causal": True}
    stock_extend, stock_decode = Stock._run_sdpa_forward_extend, Stock._run_sdpa_forward_decode
    return {
        "continuation": {
            "stock": lambda: stock_extend(backend, *extend, **causal),
            "ours": lambda: extend_new_rows_only(stock_extend, backend, *extend, **causal),
        },
        "decode": {
            "stock": lambda: stock_decode(backend, *common, **options),
            "ours": lambda: decode_grouped(stock_decode, backend, *common, **options),
        },
    }


def alternate(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median microseconds of each arm; the arms take turns."""
    times: dict[str, list[float]] = {arm: [] for arm in calls}
    for turn in range(rounds + 3):
        for arm, call in calls.items():
            began = time.perf_counter()
            call()
            if turn >= 3:  # the first turns warm up
                times[arm].append(time.perf_counter() - began)
    return {arm: round(statistics.median(t) * 1e6, 1) for arm, t in times.items()}


def main() -> None:
    """Times every context length; prints one JSON object last."""
    parser = argparse.ArgumentParser(description="Attention on a CPU: stock against ours.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    os.environ[contract.CPU_SWITCH] = "1"
    cpu.prepare()
    import torch

    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    for context in CONTEXTS:
        for operation, calls in arms(context).items():
            medians = alternate(calls, options.rounds)
            figures.setdefault(operation, {})[context] = medians
            if not options.json:
                print(f"{operation:13} context {context:5}  us per layer: {medians}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
