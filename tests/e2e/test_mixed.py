"""Requests of all kinds in one batch: each draws the same tokens as alone on a plain engine.

Seeded, deterministic inference, float32. Requests join and leave all the time, so that hardly any
two steps have the same batch.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.compare import LOGPROB_TOLERANCE
from tests.e2e.conftest import SERVER_FLAGS, servers, two_urls
from tests.e2e.draws import Drawn, clients, draw, draw_all, steps
from tests.e2e.held_out import prompts
from tests.e2e.rig import Rig

pytestmark = pytest.mark.shared_engines

KINDS: Sequence[dict[str, Any]] = (
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "ignore_eos": True},
    {"temperature": 0.5, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.5, "top_k": 3},
    {"temperature": 0.5, "top_k": 1},
    {"temperature": 1.5, "min_p": 0.05},
    {"temperature": 1.0, "logit_bias": {"46": -3.0, "12": 1.0}},
    {"temperature": 1.0, "min_new_tokens": 30, "stop_token_ids": [47], "max_new_tokens": 40},
    {"temperature": 1.0, "stop_token_ids": [47]},
    {"temperature": 1.0, "max_new_tokens": 3},
    {"temperature": 1.0, "presence_penalty": 0.5, "max_new_tokens": 40},
    {"frequency_penalty": 0.3, "repetition_penalty": 1.3, "top_p": 0.9, "max_new_tokens": 40},
    {"temperature": 1.0, "regex": "( [0-9]){30} ok"},
    {"temperature": 1.0, "regex": "( [0-9]){9}", "ignore_eos": True},  # the grammar has an end
)
LONGEST = 160
LATE = 5  # the last kinds, most of them short, which join the batch of the others


def calls() -> list[dict[str, Any]]:
    """Returns a request of every kind, each with its own seed. They are of one group."""
    (ids,), requests = prompts(1), []
    for sample, kind in enumerate(KINDS):
        sampling = {
            "max_new_tokens": LONGEST,
            **kind,
            "sampling_seed": sample,
            "custom_params": {"seer_sgl": {"group": "g", "sample": sample, "prompt_len": len(ids)}},
        }
        requests.append({"input_ids": ids, "sampling_params": sampling, "return_logprob": True})
    return requests


async def alone(url: str, wanted: Sequence[dict[str, Any]]) -> list[Drawn]:
    """Returns the results of requests that run one after the other."""
    async with clients() as session:
        return [await draw(session, url, body) for body in wanted]


async def together(url: str, wanted: Sequence[dict[str, Any]]) -> list[Drawn]:
    """Runs all requests at once on one engine. Asserts a mean batch of more than three requests.

    One call has most of them, so that they are together however slow this process is.
    """

    async def late(body: dict[str, Any], delay_s: float) -> Drawn:
        await asyncio.sleep(delay_s)
        return await draw(session, url, body)

    async with clients() as session:
        before = await steps(session, url)
        joining = (late(body, 0.02 * number) for number, body in enumerate(wanted[-LATE:], 1))
        first, joined = await asyncio.gather(
            draw_all(session, url, wanted[:-LATE]), asyncio.gather(*joining)
        )
        passes = await steps(session, url) - before
    found = [*first, *joined]
    assert sum(len(drawn.tokens) for drawn in found) > 3 * passes
    return found


def assert_as_alone(single: list[Drawn], mixed: list[Drawn]) -> None:
    """Asserts equal tokens and ends, and logprobs within the tolerance."""
    for body, one, other in zip(calls(), single, mixed, strict=True):
        assert one.tokens == other.tokens, body["sampling_params"]
        assert one.finish == other.finish, body["sampling_params"]
        assert one.logprobs == pytest.approx(other.logprobs, abs=LOGPROB_TOLERANCE)


@pytest.fixture(scope="module")
def single(rig: Rig) -> list[Drawn]:
    """Returns the result of each request alone on a plain engine."""
    found = asyncio.run(alone(rig.plain, calls()))
    assert {drawn.finish["type"] for drawn in found} == {"stop", "length"}
    return found


async def test_a_request_draws_the_same_whatever_else_is_in_its_batch(
    rig: Rig, single: list[Drawn]
) -> None:
    assert_as_alone(single, await together(rig.plain, calls()))
    mixed = await together(rig.urls[0], calls())
    assert_as_alone(single, mixed)
    # A prefill yields one token; a step yields the accepted drafts and one more token.
    accepted = sum(len(drawn.tokens) - 1 - drawn.verifications for drawn in mixed)
    assert accepted > 25


@pytest.mark.long
async def test_a_request_draws_the_same_when_it_is_retracted(
    single: list[Drawn], tmp_path: Path
) -> None:
    """Here SGLang retracts requests at every tenth step, although there is room."""
    url = two_urls()[0]
    often = {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "10"}
    with servers([url], [SERVER_FLAGS], tmp_path, often):
        mixed = await together(url, calls())
    assert sum(drawn.retractions for drawn in mixed) > 10
    assert_as_alone(single, mixed)
