"""Requests of one group, sent to a server as the driver sends them."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from seer_sgl.link import contract

TIMEOUT_S = 500.0


class Answer(NamedTuple):
    """What a server generated for a request."""

    tokens: list[int]
    logprobs: list[float]
    retractions: int


class Facts(NamedTuple):
    """What a server reports about its drafting and its emulation."""

    draft: Any
    emulation: Any


async def generate(
    url: str, prompt: Sequence[int], seeds: Sequence[int], tokens: int, **sampling: Any
) -> list[Answer]:
    """Returns an answer of `tokens` tokens per seed.

    The first request is alone, so that the others can be drafted from it.
    """
    limit = aiohttp.ClientTimeout(TIMEOUT_S)
    async with aiohttp.ClientSession(url, timeout=limit) as session:

        async def one(sample: int) -> Answer:
            origin = {"group": "g", "sample": sample, "prompt_len": len(prompt)}
            params = {
                "max_new_tokens": tokens,
                "sampling_seed": seeds[sample],
                "ignore_eos": True,
                "custom_params": {contract.ORIGIN: origin},
                **sampling,
            }
            body = {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True}
            async with session.post("/generate", json=body) as response:
                assert response.status == 200, await response.text()
                reply = await response.json()
            meta = reply["meta_info"]
            logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
            return Answer(reply["output_ids"], logprobs, meta["num_retractions"])

        first = await one(0)
        return [first, *await asyncio.gather(*map(one, range(1, len(seeds))))]


async def facts(url: str) -> Facts:
    """Returns the drafting's and the emulation's part of `/server_info`."""
    async with aiohttp.ClientSession(url) as session, session.get("/server_info") as response:
        state = (await response.json())["internal_states"][0]
    return Facts(state[contract.REPORT]["draft"], state["emulation"])


def assert_same(
    answers: Sequence[Answer], plain: Sequence[Answer], tolerance: float, what: str = "answers"
) -> None:
    """Asserts equal tokens, and logprobs within the tolerance."""
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain], what
    gaps = [
        abs(a - b)
        for one, other in zip(answers, plain, strict=True)
        for a, b in zip(one.logprobs, other.logprobs, strict=True)
    ]
    assert max(gaps) < tolerance, what
