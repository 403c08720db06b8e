"""Host memory that keeps no copies of KV (SGLang's buffer_only): half the memory, same tokens."""

import pytest

from bench.elsewhere import AlwaysElsewhere
from tests.e2e.compare import Migrations, accepted_drafts, assert_identical, roll
from tests.e2e.pools import SGLANG, local, pooled
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = 4
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
    seen = Migrations()
    parts, report = await roll(
        own, PROMPTS, [seen], placement=AlwaysElsewhere(fetch=True), timing=PATIENT
    )
    assert_identical(whole, parts)
    print(f"{report['fetches']} of {report['migrations']} moves fetched")
    assert report["migrations"] >= report["samples"]
    assert report["fetches"] >= 0.5 * report["migrations"]
    assert report["cached_tokens"]["storage"] > 0
    assert accepted_drafts(report) > 0
    assert not seen.left_kv_behind
