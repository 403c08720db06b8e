"""Rollouts on fake servers with real sockets."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Group, Sample
from tests.fake_sglang import VOCAB, FakeSGLang, response_of, serving_all

PROMPTS: list[dict[str, Any]] = [
    {"prompt_ids": [5] * length, "id": f"p{length}"} for length in (3, 7, 11, 20)
]


@contextlib.asynccontextmanager
async def rolling(
    *fakes: FakeSGLang, timing: Timing = DEFAULT, **sections: dict[str, Any]
) -> AsyncIterator[Rollout]:
    """Opens a Rollout of fake engines that share where responses begin (`prompt_lens`)."""
    async with serving_all(fakes) as urls:
        config = {
            "engines": {"launch": "external", "urls": urls, **sections.pop("engines", {})},
            "scheduling": {"chunk_tokens": 8, **sections.pop("scheduling", {})},
            "rollout": {"n_samples_per_prompt": 4, "seed": 1, **sections.pop("rollout", {})},
            "sampling": {"max_response_len": 60, **sections.pop("sampling", {})},
        }
        async with Rollout(config, timing=timing) as rollout:
            yield rollout


def check(groups: list[Group], longest: int = 50, limit: int = 60) -> None:
    """Asserts that every prompt has its n samples exactly once, equal to an undivided engine's."""
    assert sorted(group.group_id for group in groups) == sorted(p["id"] for p in PROMPTS)
    for group in groups:
        assert [sample.index for sample in group.samples] == [0, 1, 2, 3]
        for sample in group.samples:
            check_sample(sample, longest, limit)


def check_sample(sample: Sample, longest: int = 50, limit: int = 60) -> None:
    """Asserts that a sample is that of an undivided engine without faults."""
    whole = response_of(sample.seed, len(sample.prompt_ids), longest)
    tokens = whole[:limit]
    assert list(sample.response_ids) == tokens
    assert len(sample.rollout_log_probs) == sample.response_length == len(tokens)
    expected = [-1.0 - token / VOCAB for token in tokens]
    pairs = zip(sample.rollout_log_probs, expected, strict=True)
    assert all(abs(a - b) < 1e-6 for a, b in pairs)
    assert sample.finish_reason == ("stop" if len(whole) <= limit else "length")
    assert sample.failure is None


async def all_groups(rollout: Rollout, *observers: Observer) -> list[Group]:
    return [group async for group in rollout.run(PROMPTS, observers)]
