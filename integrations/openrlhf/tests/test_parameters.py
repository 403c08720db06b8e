"""What of the trainer's parameters is sent, for models and layouts of several kinds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
import transformers
from safetensors.torch import load_file
from seer_openrlhf.buckets import buckets
from seer_openrlhf.trainer import SeerActorTrainer
from transformers.conversion_mapping import get_model_conversion_mapping

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {"tie_word_embeddings": True},
    "Qwen3_5TextConfig": {"linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "Qwen3MoeConfig": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "MixtralConfig": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def trainer_of(module: Any, **ds: int) -> Any:
    """Returns what the methods here read of a trainer."""
    strategy = SimpleNamespace(args=SimpleNamespace(ds=SimpleNamespace(**ds)))
    return SimpleNamespace(
        actor=SimpleNamespace(model=SimpleNamespace(module=module)), strategy=strategy
    )


class Shards:
    """A layer of tensor parallelism, as DeepSpeed's: it gathers its own weight."""

    def __init__(self) -> None:
        self.whole = torch.arange(4.0)
        self.weight: Any = torch.nn.Parameter(self.whole[:2])
        self.weight.gather_params, self.weight._tp_partition = self.gather, self.partition
        setattr(self.weight, deepspeed.module_inject.layers.DS_IS_REPLACED_MODULE, True)

    def gather(self, weights: list[Any]) -> None:
        (weight,) = weights
        weight.data = self.whole

    def partition(self, weights: list[Any]) -> None:
        (weight,) = weights
        weight.data = self.whole[:2]


def test_each_layer_of_tensor_parallelism_gathers_its_own_parameters() -> None:
    replicated, layers = torch.nn.Parameter(torch.ones(3)), [Shards(), Shards()]
    parameters = [replicated, *(layer.weight for layer in layers)]
    with SeerActorTrainer._gathered(trainer_of(None, tensor_parallel_size=2), parameters):
        assert [len(each) for each in parameters] == [3, 4, 4]
    assert [len(each) for each in parameters] == [3, 2, 2]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_sent_as_the_models_files_have_them(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, name)(**SMALL, **MODELS[name])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model._weight_conversions += get_model_conversion_mapping(model)  # as with ZeRO-3
    sent = {
        name: tensor
        for bucket in buckets(model.named_parameters(), 1 << 10)
        for name, tensor in SeerActorTrainer._as_saved(trainer_of(model), bucket)
    }
    saved = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[each], saved[each]) for each in saved)


@pytest.mark.parametrize("name", ["Qwen3Config", "Gemma3Config", "Qwen2_5_VLConfig"])
def test_the_first_probe_has_tokens_of_the_text_model(name: str) -> None:
    config = getattr(transformers, name)()
    trainer = trainer_of(SimpleNamespace(config=config))
    trainer._ids, trainer._old, trainer._log_probs = [], None, list
    trainer._shared, trainer._check = lambda work: work(), SimpleNamespace(problems=lambda *_: [])
    SeerActorTrainer._require_equal(trainer, 0, [])
    assert max(trainer._ids) < config.get_text_config().vocab_size
