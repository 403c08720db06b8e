"""A real local engine that is killed comes back with the weights of the last update, or not at all.

tests/e2e/test_all_faults.py kills and stops engines at other moments.
"""

import os
import signal
from pathlib import Path

import pytest

from seer_sgl import Rollout
from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.driver.health import State
from tests.e2e.compare import assert_identical
from tests.e2e.conftest import HELD_OUT
from tests.e2e.pools import local
from tests.e2e.strikes import Strike, pids_of, roll, until
from tests.e2e.test_server_weights import other_model as other_model  # noqa: PLC0414 (a fixture)

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1800)]


def renamed(before: Path, after: Path) -> None:
    before.rename(after)


async def test_a_restarted_engine_serves_the_updated_weights_only(
    tmp_path: Path, other_model: Path, log_lines: list[str]
) -> None:
    settings = local(2, scheduling={"chunk_tokens": 64})
    settings["rollout"]["n_samples_per_prompt"] = 4
    async with Rollout(settings, log_dir=tmp_path / "logs") as rollout:
        prompts = rollout.read_prompts(HELD_OUT)[:2]
        _, second = rollout.fleet.engines
        await rollout.backend.update_weights(WeightUpdate.from_disk(str(other_model), version="v2"))
        calm, _ = await roll(rollout, prompts, limit=300)

        # Its scheduler only: the server ends with it.
        strike = Strike("e1", lambda: os.kill(pids_of(second)[-1], signal.SIGKILL))
        samples, found = await roll(rollout, prompts, strike, limit=300)
        assert strike.struck
        assert_identical(calm, samples)
        assert found["lost_chunks"] == found["engines"][1]["lost_chunks"] > 0
        await until(lambda: rollout.driver.available("e1"))
        assert second.server.starts == 1
        assert "engine e1 has loaded weights v2" in log_lines
        samples, found = await roll(rollout, prompts, limit=300)
        assert_identical(calm, samples)
        assert found["engines"][1]["chunks"] > 0
        assert {s.weight_version for s in samples.values()} == {"v2"}

        gone = other_model.with_name("gone")
        # Weights of no folder: the restarted engine has none of their digest.
        renamed(other_model, gone)
        for pid in reversed(pids_of(second)):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: rollout.driver.states()[1].state is State.STALE)
        samples, found = await roll(rollout, prompts, limit=300)
        assert_identical(calm, samples)
        assert found["engines"][1]["chunks"] == 0
        renamed(gone, other_model)
