"""Real SGLang servers of two pipeline stages: their samples are those of a plain server."""

from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from tests.e2e.compare import Migrations, assert_identical, roll
from tests.e2e.conftest import two_ranks_on_cores
from tests.e2e.pools import SGLANG, local, pooled
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS, CHUNK = 2, 16


def config(servers: int, **sections: Any) -> dict[str, Any]:
    """Returns a config with a few short samples."""
    own = local(servers, sampling={"max_response_len": 48}, **sections)
    own["rollout"] |= {"n_samples_per_prompt": 3}
    return own


async def test_two_stages_generate_what_one_does_and_kv_moves_between_such_servers() -> None:
    whole, _ = await roll(config(1, scheduling={"divide": False}), PROMPTS)
    own = config(2, scheduling={"chunk_tokens": CHUNK}, kv_pool=pooled("file"))
    own["engines"] |= {"sglang": SGLANG | {"pp-size": 2}, **two_ranks_on_cores(2)}
    seen = Migrations()
    parts, report = await roll(
        own, PROMPTS, [seen], placement=AlwaysElsewhere(fetch=True), timing=PATIENT
    )
    assert_identical(whole, parts)
    assert report["chunks"] >= 2 * report["samples"]
    assert report["fetches"] >= report["samples"]
    assert report["cached_tokens"]["storage"] > 0
    assert not seen.left_kv_behind
