"""Model folders in the form of released families: tokenizer files, `config.json`, no weights.

The forms follow the public files of the models that are named; each vocabulary is small and ours.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import writers
from .other_files import write_kimi, write_tekken

# A model of two layers whose tensors fit every kernel.
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
}


class Family(NamedTuple):
    """A family of models. `released`: the models whose files have this form.

    write: writes the tokenizer's files and returns the number of tokens. `model`: `config.json`.
    """

    name: str
    released: str
    write: Callable[[Path], int]
    model: Mapping[str, Any]
    own_code: bool = False

    def make(self, parent: Path) -> Path:
        folder = parent / self.name
        folder.mkdir(parents=True)
        size = self.write(folder)
        config = {**TINY, **self.model, "vocab_size": size, "torch_dtype": "float32"}
        (folder / "config.json").write_text(json.dumps(config))
        return folder


def _of(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **more}


_LLAMA = _of("LlamaForCausalLM", "llama", rope_theta=10000.0)
_MISTRAL = _of("MistralForCausalLM", "mistral", sliding_window=None)
_DEEPSEEK = _of(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=16,
    v_head_dim=16,
    num_key_value_heads=4,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=4,
    n_group=4,
    topk_group=2,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
    # From here as released.
    moe_layer_freq=1,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    max_position_embeddings=163840,
    rope_theta=10000,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
)
_GEMMA = _of("GemmaForCausalLM", "gemma", hidden_act="gelu_pytorch_tanh")
_GLM = _of("Glm4ForCausalLM", "glm4", partial_rotary_factor=0.5, pad_token_id=0)
FAMILIES = (
    Family("qwen2", "Qwen2, Qwen2.5", writers.write_qwen, _of("Qwen2ForCausalLM", "qwen2")),
    Family("qwen3", "Qwen3", writers.write_qwen3, _of("Qwen3ForCausalLM", "qwen3")),
    Family("llama2", "Llama 2", writers.write_llama2, _LLAMA),
    Family("llama3", "Llama 3", writers.write_llama3, _LLAMA),
    Family("deepseek", "DeepSeek V3, R1", writers.write_deepseek, _DEEPSEEK),
    Family("mistral", "Mistral 7B", writers.write_mistral_pieces, _MISTRAL),
    Family("mistral-model", "`tokenizer.model` alone", writers.write_mistral_model, _MISTRAL),
    Family("mistral-tekken", "Mistral Nemo", writers.write_mistral_tekken, _MISTRAL),
    Family("tekken", "`tekken.json` alone", write_tekken, _MISTRAL),
    Family("gemma", "Gemma", writers.write_gemma, _GEMMA),
    Family("glm4", "GLM-4", writers.write_glm, _GLM),
    Family("kimi", "Kimi K2", write_kimi, _of("Qwen2ForCausalLM", "qwen2"), own_code=True),
    Family("gpt-oss", "gpt-oss", writers.write_gpt_oss, _of("GptOssForCausalLM", "gpt_oss")),
    Family("phi3", "Phi-3", writers.write_phi3, _of("Phi3ForCausalLM", "phi3", pad_token_id=0)),
    Family("phi4", "Phi-4", writers.write_phi4, _of("Phi3ForCausalLM", "phi3", pad_token_id=0)),
)
