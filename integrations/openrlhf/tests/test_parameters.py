"""What of the trainer's parameters is sent, for models and layouts of several kinds."""

from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from seer_openrlhf.trainer import SeerActorTrainer


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
