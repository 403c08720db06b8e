"""Routed experts of `/generate` and `/rollout`, on fake engines."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.server.helpers import served
from tests.server.rollout_client import groups_of, rollout
from tests.support.bodies import LIMIT, PROMPT, body
from tests.support.experts import SHAPE, ExpertEngine, rows_of

SEED = 77 << 7
REASONS = {
    "stream": "return_routed_experts",
    "routed_experts_start_len": "routed_experts_start_len",
}


def check(meta: dict[str, Any], seed: int, tokens: int) -> None:
    """Fails unless a reply has the rows in SGLang's form."""
    rows = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
    assert rows.tolist() == list(rows_of(seed, 0, tokens - 1))
    assert len(rows) == (tokens - 1) * SHAPE.layers * SHAPE.top_k


async def test_a_divided_response_has_the_rows_of_all_its_tokens() -> None:
    engines = [ExpertEngine(longest=1000) for _ in range(2)]
    async with served(*engines) as it:
        reply = await it.generate(**body(SEED, return_routed_experts=True))
        meta = reply["meta_info"]
        assert meta["seer"]["chunks"] > 3
        check(meta, SEED, len(PROMPT) + LIMIT)
        longer = body(SEED, return_routed_experts=True)
        longer["input_ids"] = PROMPT + reply["output_ids"][:20]
        continued = (await it.generate(**longer))["meta_info"]
        check(continued, SEED, len(PROMPT) + 20 + continued["completion_tokens"])
        plain = await it.generate(**body(SEED))
        assert "routed_experts" not in plain["meta_info"]


async def test_a_batch_has_rows_per_response() -> None:
    async with served(ExpertEngine(longest=1000)) as it:
        params = {"max_new_tokens": 20, "sampling_seed": SEED, "n": 2}
        fields = {"input_ids": [PROMPT, PROMPT[::-1]], "sampling_params": params}
        replies = await it.generate(**fields, return_routed_experts=True)
    for reply in replies:
        meta = reply["meta_info"]
        check(meta, SEED, meta["prompt_tokens"] + meta["completion_tokens"])


async def test_a_rollout_has_rows_in_its_samples() -> None:
    async with served(ExpertEngine(longest=60), sampling={"max_new_tokens": 40}) as it:
        groups = [{"prompt_ids": PROMPT, "n": 3}]
        async with rollout(it, groups, sampling={"return_routed_experts": True}) as stream:
            (samples,) = groups_of(await stream.rest()).values()
    assert len(samples) == 3
    for sample in samples:
        tokens = len(PROMPT) + sample["response_length"]
        experts = sample["routed_experts"]
        assert experts["dtype"] == "uint8"
        assert experts["shape"] == [tokens - 1, SHAPE.layers, SHAPE.top_k]
        assert base64.b64decode(experts["data"]) == rows_of(sample["seed"], 0, tokens - 1)


@pytest.mark.parametrize("more", [{"stream": True}, {"routed_experts_start_len": 2}])
async def test_what_cannot_be_joined_passes_through(more: dict[str, Any]) -> None:
    engine = ExpertEngine(longest=1000)
    async with served(engine) as it:
        fields = body(SEED, return_routed_experts=True, **more)
        async with it.session.post(f"{it.url}/generate", json=fields) as reply:
            assert reply.status == 200
            await reply.read()
        assert it.service.passthrough.counts == {REASONS[next(iter(more))]: 1}
    assert len(engine.seen) == 1
