"""An engine with SGLang's sessions keeps the KV of conversations while single prompts fill it."""

import random
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import Rollout
from tests.e2e.pools import local
from tests.server.helpers import Served, served_config

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1200)]

FLAG = "enable-session-radix-cache"
KV_TOKENS = 4096
TURNS = 4
BEGIN, MORE, ANSWER = 512, 96, 64  # tokens of a first turn, of a tool's answer, of a response
BETWEEN = 8  # single prompts between two turns: together more than the KV
WORDS = range(5, 30)


def ids(rng: random.Random, count: int) -> list[int]:
    return rng.choices(WORDS, k=count)


async def generate(it: Served, input_ids: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    reply: dict[str, Any] = await it.generate(
        input_ids=input_ids, sampling_params=sampling, **fields
    )
    return reply


async def conversed(it: Served) -> tuple[list[int], int, int]:
    """Returns the tokens of a conversation, and how many of its turns' prompts could be cached,
    and were."""
    rng, cached, could = random.Random(3), 0, 0
    said = ids(rng, BEGIN)
    for turn in range(TURNS):
        reply = await generate(it, said, ANSWER, session_id="talk")
        if turn:
            cached += reply["meta_info"]["cached_tokens"]
            could += len(said) - MORE
        said += reply["output_ids"] + ids(rng, MORE)
        for _ in range(BETWEEN):
            await generate(it, ids(rng, 768), 8)
    return said, could, cached


async def test_the_kv_of_a_conversation_outlasts_that_of_single_prompts(tmp_path: Path) -> None:
    answers = []
    for kept in (False, True):
        config = local(1, server={"port": 0})
        flags = {**config["engines"]["sglang"], "max-total-tokens": KV_TOKENS, FLAG: kept}
        config["engines"] = {**config["engines"], "sglang": flags}
        rollout = Rollout(config, gives_up=False, log_dir=tmp_path / str(kept))
        async with served_config(rollout) as it:
            said, could, cached = await conversed(it)
            assert rollout.engines[0].sessions is kept
            status, _ = await it.post("/close_session", session_id="talk")
            assert status == 200
            assert it.service.generation.sessions == 0
        answers.append(said)
        if kept:
            assert cached > 0.9 * could
        else:
            assert cached < 0.1 * could
    assert answers[0] == answers[1]
