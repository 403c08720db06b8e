"""New weights in real SGLang servers, and the driver that waits for them."""

from pathlib import Path

import pytest

from seer_sgl import Rollout
from seer_sgl.config import parse
from seer_sgl.engine.fleet import open_fleet
from tests.e2e.conftest import HELD_OUT, external

pytestmark = pytest.mark.shared_engines


async def test_requests_run_on_the_new_weights_once_every_engine_reports_them(
    engine_urls: list[str], tmp_path: Path
) -> None:
    tree = external(engine_urls, rollout={"max_prompts": 2, "n_samples_per_prompt": 2, "seed": 1})
    config = parse(tree | {"sampling": {"max_response_len": 64}})
    async with (
        open_fleet(config.fleet, tmp_path) as fleet,
        Rollout(config, fleet=fleet) as rollout,
    ):
        prompts = rollout.read_prompts(HELD_OUT)
        before = fleet.engines[0].info.weight_version
        for version in ("again", before):  # later tests find what was there
            for engine in fleet.engines:
                await engine.reload_weights(version)
            await rollout.driver.reweigh(version)
            assert {engine.info.weight_version for engine in fleet.engines} == {version}
            groups = [group async for group in rollout.run(prompts)]
            samples = [sample for group in groups for sample in group.samples]
            assert len(samples) == 4
            assert {sample.weight_version for sample in samples} == {version}
