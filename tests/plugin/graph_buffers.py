"""Sizes the graph buffers of SGLang's Triton backend for all widths of a draft.

It is a program of its own, because the CPU engine's switches must be set before SGLang is imported:
`python -m tests.plugin.graph_buffers` prints one JSON object. The buffers are on torch's meta
device, which has no memory.
"""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from seer_sgl.plugin import cpu
from seer_sgl.plugin.speculation.graphs import requests_of, widths
from seer_sgl.plugin.speculation.shapes import save_memory

# Deterministic inference with the heads of Qwen2.5-7B, graphs of up to 256 requests.
STRIDE, REQUESTS, HEADS, HEAD_DIM, CONTEXT, SPLIT = 17, 256, 28, 128, 32_768, 256


def backend(width: int) -> Any:
    """Returns a TritonAttnBackend with the attributes that size its graph buffers."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    one = TritonAttnBackend.__new__(TritonAttnBackend)
    attributes = {
        "num_head": HEADS,
        "v_head_dim": HEAD_DIM,
        "swa_v_head_dim": None,
        "max_context_len": CONTEXT,
        "max_kv_splits": CONTEXT // SPLIT,
        "num_draft_tokens": width,
        "sliding_window_size": None,
        "use_sliding_window_kv_pool": False,
        "kv_index_translator": SimpleNamespace(is_translating=False),
        "enable_deterministic": True,
        "build_unified_kv_indices": None,
        "is_draft_runner": False,
        "skip_prefill": False,
        "lean_total_programs": 1,
        "lean_block_m": 1,
        "device": "meta",
    }
    for name, value in attributes.items():
        setattr(one, name, value)
    return one


def tensors(one: Any) -> Iterator[torch.Tensor]:
    """Yields the graph buffers of a backend."""
    for name, value in vars(one).items():
        if name.startswith("cuda_graph") and isinstance(value, torch.Tensor):
            yield value
    yield one._verify_mask.buffer


def total_bytes(saves: bool) -> int:
    """Returns the bytes of all widths' buffers."""
    widest = backend(STRIDE)
    backends = []
    for width in reversed(widths(STRIDE, gpu=saves)):
        one = widest if width == STRIDE else backend(width)
        requests = requests_of(width, REQUESTS) if saves else REQUESTS
        if saves:
            save_memory(one, lambda: REQUESTS, None if one is widest else widest)
        one.init_cuda_graph_state(requests, requests * width)
        assert one.max_kv_splits == CONTEXT // SPLIT, "decoding outside of graphs needs it"
        backends.append(one)
    different = {id(tensor): tensor.nbytes for one in backends for tensor in tensors(one)}
    return sum(different.values())


def main() -> None:
    """Prints the bytes without and with `save_memory`."""
    cpu.prepare()
    print(json.dumps({"stock": total_bytes(False), "saved": total_bytes(True)}))


if __name__ == "__main__":
    main()
