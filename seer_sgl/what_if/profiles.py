"""The engines of a what-if: by GPU and model, computed from published sizes.

GPUs: the data sheets "NVIDIA A100 Tensor Core GPU" (80 GB), "NVIDIA H100 Tensor Core GPU" and
"NVIDIA H200 Tensor Core GPU" (SXM; bf16 without sparsity). Models: `config.json` on Hugging Face
and the model cards. Of bandwidth 60 % is reached, of compute 40 %, of memory 80 % is for weights
and KV: the shares of configs/sim, whose fits to published rollouts came out near them. The step's
overhead is the least sure value: 3 ms on one GPU is a guess, 11.8 ms was fitted for tensor
parallelism over eight (configs/sim/qwen2-vl-72b.yaml). Three models come whole from configs/sim.
"""

from typing import Any, NamedTuple

import msgspec

from seer_sgl.config.reading import read_tree
from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.source import workload_file

GB = 1e9
BF16 = 2  # bytes
REACHED_BANDWIDTH, REACHED_COMPUTE, USED_MEMORY = 0.6, 0.4, 0.8
PREFILL = 0.8  # of the compute that decoding reaches (configs/sim: 0.7 to 0.9)
OVERHEAD_MS, PARALLEL_OVERHEAD_MS = 3.0, 11.8
ROW_OVERHEAD_US = 20.0  # sampling over 150,000 words, scheduling: a guess, as in configs/sim
LINK_GB_S = 20.0  # one 200 Gb/s RDMA card per GPU
# GPUs per engine of the models in configs/sim, whose engines are described there (H800).
FITTED = {"moonlight": 1, "qwen2-vl-72b": 8, "kimi-k2": 32}


class Gpu(NamedTuple):
    """One GPU: memory in GB, bandwidth in GB/s, dense bf16 TFLOPS."""

    memory: float
    bandwidth: float
    tflops: float


class Model(NamedTuple):
    """A dense model in bf16: parameters in billions, and its attention."""

    billions: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int = 128


GPUS = {
    "A100": Gpu(80, 2039, 312),
    "H100": Gpu(80, 3350, 989),
    "H200": Gpu(141, 4800, 989),
}
MODELS = {
    "qwen2.5-7b": Model(7.6, 28, 28, 4),
    "qwen3-8b": Model(8.2, 36, 32, 8),
    "qwen2.5-72b": Model(72.7, 80, 64, 8),
}
DEFAULT_GPU, DEFAULT_MODEL = "H100", "qwen3-8b"


class Profile(NamedTuple):
    """Engines of one kind: the keys of a simulation, GPUs per engine, and a description."""

    tree: dict[str, Any]
    gpus: int
    description: str


def profile(model: str, gpu: str | None, gpus: int | None, engines: int | None) -> Profile:
    """Returns the engines of a model. `gpus`: per engine; `engines`: their number.

    Raises ConfigError if a name is unknown, or the model does not fit.
    """
    if model in FITTED:
        if gpu is not None or gpus is not None:
            raise ConfigError(f"--model {model}: has its own GPUs; leave out --gpu")
        per_engine = FITTED[model]
        found, _ = read_tree(workload_file(model))
        tree = {key: dict(found[key]) for key in ("engine", "pool")}
        words = f"{model} on {per_engine} x H800, fitted to a published rollout (configs/sim)"
    else:
        name, per_engine = gpu or DEFAULT_GPU, gpus or 1
        tree = _computed(model, name, per_engine)
        words = f"{model} in bf16 on {per_engine} x {name}, computed from data sheets"
    if engines is not None:
        tree["engine"]["count"] = engines
    return Profile(tree, per_engine, words)


def measured_profile(engine: EngineConfig, gpus: int | None) -> Profile:
    """Returns engines whose costs were measured on servers without a KV pool."""
    tree = {"engine": msgspec.to_builtins(engine), "pool": {"enabled": False}}
    return Profile(tree, gpus or 1, "measured on the given servers, without a KV pool")


def _computed(model: str, gpu: str, gpus: int) -> dict[str, dict[str, Any]]:
    if model not in MODELS:
        raise ConfigError(f"--model {model}: unknown; known: {', '.join((*MODELS, *FITTED))}")
    if gpu not in GPUS:
        raise ConfigError(f"--gpu {gpu}: unknown; known: {', '.join(GPUS)}")
    size, card = MODELS[model], GPUS[gpu]
    kv_bytes = 2 * size.layers * size.kv_heads * size.head_size * BF16
    weights_gb = size.billions * BF16
    room_gb = gpus * card.memory * USED_MEMORY - weights_gb
    if room_gb <= 0:
        raise ConfigError(f"--model {model}: does not fit on {gpus} x {gpu}; --gpus-per-engine")
    tflops = gpus * card.tflops * REACHED_COMPUTE
    engine = {
        "kv_tokens": int(room_gb * GB / kv_bytes),
        "weights_gb": weights_gb,
        "active_params_b": size.billions,
        "kv_bytes_per_token": kv_bytes,
        "attention_mflop": 4e-6 * size.layers * size.heads * size.head_size,
        "bandwidth_gb_s": gpus * card.bandwidth * REACHED_BANDWIDTH,
        "tflops": tflops,
        "overhead_ms": OVERHEAD_MS if gpus == 1 else PARALLEL_OVERHEAD_MS,
        "row_overhead_us": ROW_OVERHEAD_US,
        "prefill_tok_s": PREFILL * tflops * 1e12 / (2 * size.billions * 1e9),
    }
    return {"engine": engine, "pool": {"gb_s": LINK_GB_S * gpus}}
