"""Requests with a different sampling per group, and their undivided samples."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from seer_sgl import Rollout
from tests.e2e.compare import Samples
from tests.e2e.held_out import texts, tokenizer
from tests.e2e.rig import Rig

GROUPS = 64
SEED = 11  # of `external`
LONGEST = 200
WORDS = (47, 12)  # tokens that the model often writes


def kinds() -> list[dict[str, Any]]:
    """Returns a different sampling for each group."""
    decode = tokenizer().decode
    word, other = (decode([token]).strip() for token in WORDS)
    draws: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.2, "top_k": 6},
        {"temperature": 0.9, "top_p": 0.7, "top_k": 9},
        {"temperature": 1.3, "min_p": 0.05},
        {"temperature": 0.8, "logit_bias": {"46": -3.0, "12": 1.0}},
        {"temperature": 0.7, "presence_penalty": 0.5},
    ]
    ends: list[dict[str, Any]] = [
        {},
        {"stop": [word]},
        {"stop_token_ids": [WORDS[0]]},
        {"stop": [other, word], "no_stop_trim": True},
        {"stop_token_ids": [WORDS[0]], "min_new_tokens": 30},
        {"ignore_eos": True, "max_new_tokens": 130},
        {"max_new_tokens": 3},
        {"stop_regex": f"{word} ."},
    ]
    return [{"max_new_tokens": LONGEST, **draw, **end} for draw in draws for end in ends]


def prompts() -> list[dict[str, Any]]:
    """Returns prompts with their own sampling and one or two samples each."""
    chosen = texts(16)
    return [
        {"prompt": chosen[i % 16], "id": f"g{i}", "n": 1 + i % 3, "sampling": s}
        for i, s in enumerate(kinds())
    ]


@pytest.fixture(scope="session")
def reference(rig: Rig) -> Samples:
    """Returns the undivided samples of a plain engine."""
    return asyncio.run(rig.undivided(prompts()))


@contextlib.asynccontextmanager
async def opened(config: dict[str, Any], **options: Any) -> AsyncIterator[Rollout]:
    async with Rollout(config, **options) as rollout:
        yield rollout
        assert rollout.driver.check() == [], "an idle driver has no leftovers"
