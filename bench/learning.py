"""What a training run has learned: the figures of its steps, and its answers. Pure."""

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from bench.reasoner.evaluate import Sample
from bench.reasoner.reward import reward

STEP = re.compile(r"Global step (\d+): (\{.*\})")  # in the log of OpenRLHF's trainer
KEPT = (
    "reward",
    "guessed",
    "finished",
    "response_length",
    "truncated",
    "vllm_kl",
    "actor_grad_norm",
    "timing/generation",
    "timing/make_experience",
    "timing/ppo_train",
    "timing/broadcast",
)


def steps_of(log: str) -> list[dict[str, float]]:
    """Returns the figures of every step of a log, in order."""
    found = ((int(step), ast.literal_eval(text)) for step, text in STEP.findall(log))
    return [{"step": step, **{key: figures[key] for key in KEPT}} for step, figures in found]


def held_out(samples: Sequence[Sample]) -> dict[str, Any]:
    """Returns the share of right answers, by prompt and together, and the response lengths."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        rewards[sample.group_id].append(reward(sample.text, sample.answer))
    return {
        "samples": len(samples),
        "right": fmean(reward(sample.text, sample.answer) for sample in samples),
        "length_mean": fmean(len(sample.response_ids) for sample in samples),
        "finished": fmean(sample.finish_reason == "stop" for sample in samples),
        "right_by_prompt": {name: fmean(values) for name, values in rewards.items()},
    }


def gain(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Returns the mean gain over the prompts and its standard error, prompt by prompt."""
    gains = [after[name] - before[name] for name in before]
    return {"mean": fmean(gains), "standard_error": stdev(gains) / sqrt(len(gains))}
