"""A tiny mixture of experts, made from a seed, and what tests ask its engines."""

import base64
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer_sgl.config import FlagValue
from seer_sgl.types import Sample
from tests.e2e.calls import post
from tests.e2e.conftest import SGLANG as RIG
from tests.e2e.weights import add_weights, scale
from tests.tokenizers.families import Family
from tests.tokenizers.writers import write_qwen3

LAYERS, TOP_K, EXPERTS = 3, 2, 8
FAMILY = Family(
    "qwen3-moe",
    "Qwen3 MoE",
    write_qwen3,
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": LAYERS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "initializer_range": 0.4,  # so large that the output is chaotic
    },
)
SGLANG: dict[str, FlagValue] = {
    **RIG,
    "max-total-tokens": 8192,
    "max-running-requests": 24,
    "enable-return-routed-experts": True,
}
Rows = NDArray[Any]


def moe_model(parent: Path, factor: float = 1.0) -> Path:
    """Returns the folder of the model; `factor`: of its weights."""
    folder = add_weights(FAMILY.make(parent))
    if factor != 1.0:
        scale(folder, factor)
    return folder


def moe_prompts(count: int) -> list[dict[str, Any]]:
    """Returns prompts of random tokens, of several lengths."""
    draw = random.Random(3)
    ids = [[draw.randrange(5, 250) for _ in range(40 + 7 * i)] for i in range(count)]
    return [{"id": f"p{i}", "prompt_ids": each} for i, each in enumerate(ids)]


def generate(url: str, ids: Sequence[int], start: int = 0, **more: Any) -> tuple[Rows, Any]:
    """Returns the rows of an engine's own `/generate` for one more token, and its `meta_info`."""
    params = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
    body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": params}
    body |= {"return_routed_experts": True, "routed_experts_start_len": start}
    meta = post(f"{url}/generate", **body)["meta_info"]
    rows = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
    return rows.reshape(-1, LAYERS, TOP_K), meta


def rows_of(sample: Sample) -> Rows:
    """Returns a sample's rows: of all its tokens but the last."""
    assert sample.routed_experts is not None
    rows = sample.routed_experts.array()
    tokens = len(sample.prompt_ids) + sample.response_length
    assert rows.shape == (tokens - 1, LAYERS, TOP_K)
    assert rows.dtype == np.uint8
    return rows


def prefilled(url: str, sample: Sample) -> Rows:
    """Returns the rows of a sample's tokens if an engine computes all of them at once."""
    ids = [*sample.prompt_ids, *sample.response_ids]
    return generate(url, ids)[0][: len(ids) - 1]


# As a plugin of SGLang: requests with this parameter get the rows that stock SGLang returns.
STOCK = "stock_rows"


def leave_to_sglang() -> None:
    """The entry point of the plugin."""
    from seer_sgl.plugin.expert_rows import ExpertCapture

    ours = ExpertCapture._kept

    def kept(self: Any, req: Any) -> Any:
        params = req.sampling_params.custom_params or {}
        return None if params.get(STOCK) else ours(self, req)

    ExpertCapture._kept = kept  # type: ignore[method-assign]


def leave_rows_of_trees() -> None:
    """The entry point of another plugin: rows stay where a verification has written them."""
    from seer_sgl.plugin.speculation import moved

    moved.move_rows = lambda *_: None
