"""`seer-openrlhf` on a CPU that prints how well engines and trainer agree on equal weights.

A line `CURRENT {...}` for each step has the sum of differences of log probabilities (the engine's
minus the trainer's, as OpenRLHF's `vllm_kl`) over the tokens of the trainer's own weight version,
and over the tokens of older ones, with their numbers.
"""

from __future__ import annotations  # Ray's workers get `compared` by value, without their names

import json
from functools import wraps
from importlib import import_module
from typing import Any

import cpu_command
from stand_ins import cpu

STAND_INS = cpu.install


def install() -> None:
    """The hook of Ray's workers: the stand-ins, and the lines."""
    STAND_INS()
    maker: Any = import_module("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    maker.make_experience_batch = compared(maker.make_experience_batch)


def compared(original: Any) -> Any:
    """Returns the method that makes a step's experiences, and prints the line."""
    steps = 0

    @wraps(original)
    def make_experience_batch(self: Any, samples: Any) -> Any:
        nonlocal steps
        steps += 1
        found: dict[str, list[float]] = {"current": [], "older": []}
        experiences = original(self, samples)
        for experience in experiences:
            differences = (experience.rollout_log_probs - experience.action_log_probs).float()
            for row, mask in enumerate(experience.action_mask.bool()):
                values = differences[row][mask].tolist()
                newest = int(experience.info["seer_newest_tokens"][row])
                if int(experience.info["seer_newest_version"][row]) != steps - 1:
                    newest = 0
                older = len(values) - newest
                found["older"] += values[:older]
                found["current"] += values[older:]
        line = {name: [sum(values), len(values)] for name, values in found.items()}
        print("CURRENT", json.dumps({"step": steps, **line}), flush=True)
        return experiences

    return make_experience_batch


if __name__ == "__main__":
    cpu_command.use_cpu()
    cpu.install = install
    command: Any = import_module("seer_openrlhf.command")
    command.main()
