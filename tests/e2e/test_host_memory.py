"""Host memory that keeps no copies of KV (SGLang's buffer_only): half the memory, same tokens."""

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from tests.e2e.compare import (
    Migrations,
    accepted_drafts,
    assert_identical,
    roll,
    roll_singly,
    rolled,
)
from tests.e2e.conftest import HELD_OUT
from tests.e2e.pools import SGLANG, local, pooled
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = 4
SINGLE = 20  # most requests that run alone
ENOUGH = 20  # moves of these, with the time to read all of their KV
SAMPLING = {"max_response_len": 600}


@pytest.mark.parametrize("backend", ["file", "mooncake"])
async def test_kv_moves_through_less_host_memory_than_the_device_has(backend: str) -> None:
    whole, _ = await roll(local(1, sampling=SAMPLING, scheduling={"divide": False}), PROMPTS)
    own = local(
        2,
        sampling=SAMPLING,
        scheduling={"chunk_tokens": 64},
        kv_pool=pooled(backend, host_ratio=0.5),
        draft={"scope": "engine"},
    )
    own["engines"]["sglang"] = SGLANG | {"hicache-host-memory-mode": "buffer_only"}
    seen, alone = Migrations(), Migrations()
    async with Rollout(own, placement=AlwaysElsewhere(fetch=True), timing=PATIENT) as rollout:
        parts, report = await rolled(rollout, PROMPTS, [seen])
        assert_identical(whole, parts)
        print(f"{report['fetches']} of {report['migrations']} moves fetched")
        assert report["migrations"] >= report["samples"]
        assert report["cached_tokens"]["storage"] > 0
        assert accepted_drafts(report) > 0
        assert not seen.left_kv_behind
        # How many of these moves fetch is for the machine to say: a busy one reports KV as missing
        # that arrives later, and ends reads early.
        single = rollout.read_prompts(HELD_OUT)[PROMPTS : PROMPTS + SINGLE]
        await roll_singly(rollout, single, [alone], lambda: len(alone.in_time) >= ENOUGH)
    assert not alone.left_kv_behind
    assert sum(fetch.read > 0 for fetch in alone.in_time) >= 0.5 * len(alone.in_time), alone.in_time
