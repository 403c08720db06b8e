"""Real SGLang servers of two pipeline stages: their samples are those of a plain server."""

from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from tests.e2e.compare import Migrations, assert_identical, roll, roll_singly, rolled
from tests.e2e.conftest import HELD_OUT, two_ranks_on_cores
from tests.e2e.pools import SGLANG, local, pooled
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS, CHUNK = 2, 16
SINGLE = 20  # most requests that run alone


def config(servers: int, **sections: Any) -> dict[str, Any]:
    own = local(servers, sampling={"max_response_len": 48}, **sections)
    own["rollout"] |= {"n_samples_per_prompt": 3}
    return own


async def test_two_stages_generate_what_one_does_and_kv_moves_between_such_servers() -> None:
    whole, _ = await roll(config(1, scheduling={"divide": False}), PROMPTS)
    own = config(2, scheduling={"chunk_tokens": CHUNK}, kv_pool=pooled("file"))
    own["engines"] |= {"sglang": SGLANG | {"pp-size": 2}, **two_ranks_on_cores(2)}
    seen, placement = Migrations(), AlwaysElsewhere(fetch=True)
    async with Rollout(own, placement=placement, timing=PATIENT) as rollout:
        parts, report = await rolled(rollout, PROMPTS, [seen])
        # A busy machine ends reads early: then requests that run alone have the time for them.
        single = rollout.read_prompts(HELD_OUT)[PROMPTS : PROMPTS + SINGLE]
        await roll_singly(rollout, single, [seen], lambda: seen.fetches >= len(parts))
    assert_identical(whole, parts)
    assert report["chunks"] >= 2 * report["samples"]
    assert report["cached_tokens"]["storage"] > 0
    assert not seen.left_kv_behind
