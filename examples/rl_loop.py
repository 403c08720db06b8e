"""Reinforcement learning with seer-sgl as the rollout backend, on a CPU in a few minutes.

    python -m examples.rl_loop [--steps 3] [--prompts 8]

Each step rolls out a group of samples per prompt, rewards them, makes one policy gradient update of
the model, and gives the new weights to the engines. The model computes greatest common divisors in
words; the reward is 1 for the right answer. A trainer of your own replaces `train`.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.reasoner.reward import reward
from seer_sgl import Group, Rollout, WeightUpdate, load_ready
from seer_sgl.torchvision_schemas import define_missing_schemas

define_missing_schemas()  # transformers imports torchvision, which fails with a CPU torch
from transformers import AutoModelForCausalLM  # noqa: E402

LEARNING_RATE = 1e-4
LONGEST = 1500  # response tokens


async def main(steps: int, prompts: int) -> None:
    """Trains a copy of the small model for some steps and prints a line per step."""
    with tempfile.TemporaryDirectory() as folder:
        model_folder = Path(folder) / "model"
        shutil.copytree(load_ready("cpu-seer").model.path or "", model_folder)
        config = load_ready(
            "cpu-seer",
            [
                f"model.path={model_folder}",
                f"rollout.max_prompts={prompts}",
                f"sampling.max_response_len={LONGEST}",
            ],
        )
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        async with Rollout(config, log_dir=Path(folder) / "logs") as rollout:
            questions = rollout.read_prompts(config.rollout.prompts or "")
            for step in range(steps):
                groups = [group async for group in rollout.run(questions)]
                report = rollout.report()
                rewards = [[rewarded(sample) for sample in group.samples] for group in groups]
                print(
                    f"step {step}: reward {statistics.mean(map(statistics.mean, rewards)):.3f}, "
                    f"mean length {report['response_length']['mean']:.0f}, "
                    f"{report['throughput_tok_s']:.0f} tok/s, "
                    f"{report['accept_length'] or 1:.2f} tokens per verification",
                    flush=True,
                )
                await asyncio.to_thread(train, model, optimizer, groups, rewards)
                await asyncio.to_thread(model.save_pretrained, model_folder)
                new = WeightUpdate.from_disk(str(model_folder), version=f"step-{step + 1}")
                await rollout.backend.update_weights(new)


def rewarded(sample: Any) -> float:
    """Returns the reward of a sample."""
    return reward(sample.text or "", sample.metadata["answer"])


def train(
    model: Any, optimizer: torch.optim.Optimizer, groups: list[Group], rewards: list[list[float]]
) -> None:
    """Makes one REINFORCE update, with the mean of each group as its baseline.

    The gradient of every sample is weighted by its advantage and divided by the number of tokens of
    the batch. Groups without any difference in reward have no gradient.
    """
    tokens = sum(len(sample.response_ids) for group in groups for sample in group.samples)
    optimizer.zero_grad()
    for group, earned in zip(groups, rewards, strict=True):
        baseline = statistics.mean(earned)
        for sample, value in zip(group.samples, earned, strict=True):
            if value == baseline:
                continue
            ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
            logits = model(ids).logits[0, len(sample.prompt_ids) - 1 : -1]
            chosen = torch.tensor(sample.response_ids, dtype=torch.long)
            log_probs = torch.log_softmax(logits.float(), -1).gather(1, chosen[:, None])
            (-(value - baseline) * log_probs.sum() / tokens).backward()
    optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.steps, arguments.prompts))
