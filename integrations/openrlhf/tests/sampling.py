"""OpenRLHF's sample generator with a fake fleet: what the tests of the sample path share."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from byte_tokenizer import byte_tokenizer
from fake_fleet import FakeClient
from local_ray import LocalRay, local_ray
from openrlhf.datasets import PromptDataset
from openrlhf.utils.agent import SingleTurnAgentExecutor
from seer_openrlhf.flags import SeerFlags, publish
from seer_openrlhf.front import Front
from seer_openrlhf.generator import SeerSamplesGenerator
from torchdata.stateful_dataloader import StatefulDataLoader

TOKENIZER = byte_tokenizer()
# What train_ppo_ray passes on.
GENERATE = {"do_sample": True, "max_len": 64, "max_new_tokens": 8, "temperature": 0.7, "top_p": 0.9}


def params(**changes: Any) -> Any:
    """Returns sampling parameters of an executor."""
    given = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 8, "min_tokens": 1}
    return SimpleNamespace(**{**given, "skip_special_tokens": False, "logprobs": 1, **changes})


@dataclass
class Setup:
    """The options of a run of the sample path."""

    prompts: Sequence[str] = tuple(f"prompt {number}" for number in range(8))
    eval_prompts: Sequence[str] = ("held out 0", "held out 1")
    batch_size: int = 4
    n: int = 2
    filtering: bool = False
    over_sampling: float = 1.0
    correction: str = "token"
    generate_batch_size: int | None = None
    fleet: FakeClient = field(default_factory=FakeClient)
    executor: Any = field(default_factory=SingleTurnAgentExecutor)
    shuffle: random.Random | None = None
    seed: int = 42
    wait_s: float = 0.0  # for a server that has ended


@dataclass
class Sampling:
    """The sample path of a run."""

    generator: Any
    front: Front
    ray: LocalRay
    loader: Any

    def batch(self, **changes: Any) -> list[Any]:
        """Returns the samples of the next training batch."""
        samples: list[Any] = self.generator.generate_samples(**{**GENERATE, **changes})[0]
        return samples

    def evaluate(self, n: int = 3) -> list[Any]:
        """Returns the samples of an evaluation, as PPOTrainer.fit asks for it."""
        options = {**GENERATE, "temperature": 0.3, "n_samples_per_prompt": n}
        samples: list[Any] = self.generator.generate_eval_samples(**options)
        return samples


@contextmanager
def sampling(setup: Setup) -> Iterator[Sampling]:
    """Runs the sample path during the block."""
    publish(SeerFlags(url="http://127.0.0.1:1", over_sampling=setup.over_sampling))
    args = SimpleNamespace(
        train=SimpleNamespace(seed=setup.seed),
        vllm=SimpleNamespace(enable_sleep=False),
        data=SimpleNamespace(input_key="input", label_key="label", apply_chat_template=False),
        rollout=SimpleNamespace(
            batch_size=setup.batch_size,
            n_samples_per_prompt=setup.n,
            vllm_generate_batch_size=setup.generate_batch_size,
        ),
        algo=SimpleNamespace(
            dynamic_filtering_enable=setup.filtering,
            dynamic_filtering_range=(0.0, 1.0),
            advantage=SimpleNamespace(is_correction_level=setup.correction),
        ),
    )
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    server: Any = setup.fleet
    front = Front(server, setup.executor, setup.wait_s)
    with local_ray(setup.shuffle) as ray:
        loader = dataloader(setup.prompts, strategy)
        evaluation = dataloader(setup.eval_prompts, strategy)
        made = SeerSamplesGenerator(strategy, loader, evaluation, TOKENIZER, [ray.actor(front)])
        yield Sampling(made, front, ray, loader)


def dataloader(prompts: Sequence[str], strategy: Any) -> Any:
    """Returns OpenRLHF's dataloader of prompts; a label is the prompt's number."""
    rows = [{"input": prompt, "label": str(number)} for number, prompt in enumerate(prompts)]
    dataset = PromptDataset(rows, TOKENIZER, strategy)
    return StatefulDataLoader(dataset, batch_size=1, collate_fn=dataset.collate_fn)


def update(run: Sampling, version: str) -> None:
    """Updates the weights as the trainer does, through the front."""
    begin_update(run, version)
    run.ray.get(run.ray.actor(run.front).update.remote("/end_weight_update", {}))


def begin_update(run: Sampling, version: str) -> None:
    """Begins to update the weights."""
    call = run.ray.actor(run.front).update
    run.ray.get(call.remote("/begin_weight_update", {}))
    run.ray.get(call.remote("/update_weights_from_distributed", {"weight_version": version}))
