"""A stand-in of openrlhf.cli.train_ppo_ray: it generates one batch and trains nothing.

OpenRLHF's own generator runs in a Ray actor, with the real front. With --asynchronous another actor
waits for the samples, as in OpenRLHF's asynchronous trainer.
"""

import sys
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import SamplesGenerator  # as Ray carries it to the actor
from openrlhf.trainer.ray import create_vllm_engines

PROMPTS, SAMPLES = 3, 2


class Tokenizer:
    """Turns each text into the same two tokens."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([[3, 4]])}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Returns the ids as text."""
        return " ".join(map(str, ids))


class Prompts(list[Any]):
    """A dataloader of prompts, as far as the generator uses it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: there are no checkpoints here."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Is not called here."""


class Trainer:
    """What OpenRLHF's trainers do with a generator."""

    def __init__(self, engines: list[Any]) -> None:
        args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=PROMPTS, n_samples_per_prompt=SAMPLES),
            algo=SimpleNamespace(
                advantage=SimpleNamespace(is_correction_level="token"),
                dynamic_filtering_enable=False,
            ),
            train=SimpleNamespace(seed=1),
            vllm=SimpleNamespace(enable_sleep=False),
        )
        rows = Prompts((["d"], [f"p{number}"], ["1"], [None]) for number in range(PROMPTS))
        generator: Any = SamplesGenerator
        strategy = SimpleNamespace(args=args)
        self.generator = generator(strategy, rows, None, Tokenizer(), engines)

    def fit(self) -> int:
        """Returns the number of samples of a batch."""
        return len(self.generator.generate_samples(max_len=64, max_new_tokens=8)[0])

    def wait(self) -> None:
        """Never returns."""
        import threading

        threading.Event().wait()


def train() -> None:
    """What runs in the place of OpenRLHF's program."""
    actor: Any = ray.remote(num_cpus=0)(Trainer)
    engines = create_vllm_engines(1)
    trainer, other = actor.remote(engines), actor.remote(engines)
    waiting = [other.wait.remote()] if "--asynchronous" in sys.argv else []
    if waiting:
        ray.get([*waiting, trainer.fit.remote()])
    print(f"{ray.get(trainer.fit.remote())} samples", flush=True)


if __name__ == "__main__":
    train()
