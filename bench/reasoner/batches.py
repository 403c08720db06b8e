"""The batches of policy-gradient updates: samples with rewards and advantages. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from bench.reasoner.reward import reward

GROUPS_PER_UPDATE = 4  # as in integrations/openrlhf/tests/reasoner/grpo.py, like the rate
TOKENS_AT_ONCE = 8192


class Graded(NamedTuple):
    """A sample with its reward. `group`: the prompt's id."""

    group: str
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    reward: float


def graded(sample: Mapping[str, Any]) -> Graded:
    """Returns a line of samples.jsonl with the reward of its text."""
    right = reward(sample["text"], sample["metadata"]["answer"])
    return Graded(sample["group_id"], sample["prompt_ids"], sample["response_ids"], right)


def advantages(samples: Sequence[Graded]) -> list[float]:
    """Returns the reward of each sample of a group in the group's standard deviations."""
    rewards = [sample.reward for sample in samples]
    mean, deviation = fmean(rewards), pstdev(rewards)
    return [0.0 if deviation == 0 else (each - mean) / deviation for each in rewards]


def batches(samples: Sequence[Graded], updates: int) -> Iterator[tuple[list[Graded], list[float]]]:
    """Yields the samples and advantages of each update. Every update takes other groups; after all
    groups the next one begins again."""
    groups: dict[str, list[Graded]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    names, draw = sorted(groups), random.Random(0)
    draw.shuffle(names)
    for number in range(updates):
        first = number * GROUPS_PER_UPDATE
        chosen = [groups[names[(first + i) % len(names)]] for i in range(GROUPS_PER_UPDATE)]
        yield (
            [sample for group in chosen for sample in group],
            [weight for group in chosen for weight in advantages(group)],
        )


def rows_of(samples: Sequence[Graded]) -> Iterator[list[int]]:
    """Yields indices of samples of like length, TOKENS_AT_ONCE with padding."""
    rows: list[int] = []
    for i in sorted(range(len(samples)), key=lambda i: len(samples[i].response_ids)):
        longest = len(samples[i].prompt_ids) + len(samples[i].response_ids)
        if rows and longest * (len(rows) + 1) > TOKENS_AT_ONCE:
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows
