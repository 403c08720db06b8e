"""Unseeded, speculation samples the target's distribution: a chi-square test of every token.

The engine returns the whole distribution behind each token (the model has 64 of them). With the
likeliest tokens first, the place of the sampled token in the cumulated distribution, drawn evenly
within the token's own share, is uniform between 0 and 1 if and only if the token was sampled from
it. SGLang's own n-gram speculation, which commits the argmax on a CPU, shows that it can fail.
"""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.e2e.conftest import SERVER_FLAGS, servers, two_urls
from tests.e2e.draws import clients
from tests.e2e.held_out import prompts
from tests.e2e.undivided import generate

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

VOCABULARY = 64
BINS = 25
TOKENS = 20_000
SURE = 0.8
FLAGS = [flag for flag in SERVER_FLAGS if flag != "--enable-deterministic-inference"]
OURS = ["--speculative-algorithm", "SEER_GROUP", "--speculative-num-draft-tokens", "9"]
NGRAM = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"]


class Places(NamedTuple):
    """The positions of sampled tokens in their distributions."""

    found: list[float]
    unsure: list[float]  # positions where the likeliest token has less than SURE
    argmax: list[float]  # where these would be if the likeliest token had been committed
    steps: int  # decode steps


async def places(url: str, calls: int, rng: random.Random) -> Places:
    """Returns the places of `calls` responses, eight per prompt, all requested at once."""
    ids = prompts(calls // 8)
    async with clients() as session:

        async def call(number: int) -> Any:
            group, sample = divmod(number, 8)
            origin = {"group": f"g{group}", "sample": sample, "prompt_len": len(ids[group])}
            body = {
                "input_ids": ids[group],
                "sampling_params": {
                    "temperature": 1.5,  # at 1 the distributions are too peaked
                    "max_new_tokens": 400,
                    "ignore_eos": True,
                    "custom_params": {"seer_sgl": origin},
                },
                "return_logprob": True,
                "top_logprobs_num": VOCABULARY,
            }
            return (await generate(session, url, body))["meta_info"]

        replies = await asyncio.gather(*(call(number) for number in range(calls)))
    found, unsure, argmax = [], [], []
    for reply in replies:
        tokens = reply["output_token_logprobs"]
        for (_, token, _), ranked in zip(tokens, reply["output_top_logprobs"], strict=True):
            shares = np.exp([logprob for logprob, _, _ in ranked])
            assert shares.sum() == pytest.approx(1.0, abs=1e-3)
            at = [other for _, other, _ in ranked].index(token)
            found.append(float(shares[:at].sum() + rng.random() * shares[at]))
            if shares[0] < SURE:
                unsure.append(found[-1])
                argmax.append(float(rng.random() * shares[0]))
    return Places(found, unsure, argmax, sum(reply["spec_verify_ct"] for reply in replies))


def unlikely(found: list[float]) -> float:
    """Returns the p-value of a chi-square test that the places are uniform."""
    counts, _ = np.histogram(found, BINS, (0.0, 1.0))
    return float(chisquare(counts).pvalue)


async def test_every_token_is_a_sample_of_the_targets_distribution(tmp_path: Path) -> None:
    url = two_urls()[:1]
    with servers(url, [[*FLAGS, *OURS]], tmp_path):
        sampled = await places(url[0], 64, random.Random(1))
    assert len(sampled.found) >= TOKENS
    assert len(sampled.found) - sampled.steps > 1_000, "it did speculate"
    assert unlikely(sampled.found) > 1e-4
    assert unlikely(sampled.unsure) > 1e-4
    assert unlikely(sampled.argmax) < 1e-12, "the test finds a bias"


@pytest.mark.skipif(shutil.which("g++") is None, reason="SGLang compiles its n-gram index with g++")
async def test_the_test_finds_the_argmax_of_sglangs_own_ngram_speculation(tmp_path: Path) -> None:
    url = two_urls()[:1]
    with servers(url, [[*FLAGS, *NGRAM]], tmp_path):
        sampled = await places(url[0], 16, random.Random(1))
    assert len(sampled.found) > sampled.steps, "it did speculate"
    assert unlikely(sampled.unsure) < 1e-12
