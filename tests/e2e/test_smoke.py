"""The smoke test of `make test`: all of Seer on two real servers equals one plain server."""

from pathlib import Path

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout, load_ready
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, by_key, roll
from tests.e2e.conftest import HELD_OUT, SERVER_FLAGS, external, servers, two_urls

pytestmark = [pytest.mark.own_engines, pytest.mark.smoke]

PROMPTS = 2
SAMPLES = 8  # per prompt
LONGEST = 400


async def undivided(folder: Path) -> Samples:
    """Returns the samples of one server without pool and drafts."""
    urls = two_urls()[:1]
    config = external(urls, sampling={"max_response_len": LONGEST}, scheduling={"divide": False})
    with servers(urls, [SERVER_FLAGS], folder):
        samples, report = await roll(config, PROMPTS)
    assert report["chunks"] == report["samples"] == PROMPTS * SAMPLES
    return samples


async def test_divided_with_pool_and_drafts_equals_undivided_on_one_server(tmp_path: Path) -> None:
    whole = await undivided(tmp_path)
    overrides = (
        "rollout.seed=11",  # that of `external`
        f"rollout.max_prompts={PROMPTS}",
        f"rollout.n_samples_per_prompt={SAMPLES}",
        f"sampling.max_response_len={LONGEST}",
        "scheduling.chunk_tokens=64",
    )
    config = load_ready("cpu-seer", overrides)
    async with Rollout(config, log_dir=tmp_path, placement=AlwaysElsewhere(fetch=True)) as rollout:
        groups = [group async for group in rollout.run(rollout.read_prompts(HELD_OUT))]
    report = rollout.report()
    assert_identical(whole, by_key([sample for group in groups for sample in group.samples]))
    assert report["migrations"] == report["chunks"] - report["samples"] > 2 * len(whole)
    assert report["fetches"] > len(whole), "KV came from the pool"
    assert accepted_drafts(report) > len(whole)
