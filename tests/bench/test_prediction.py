"""The simulation beside a benchmark."""

from array import array
from typing import Any

import pytest

from seer_sgl.bench.arms import BASELINE, SEER
from seer_sgl.bench.config import load_bench, ready_config
from seer_sgl.bench.constants import draft_overhead_us
from seer_sgl.bench.measure import Rolled
from seer_sgl.bench.prediction import predict
from seer_sgl.rollout.recorder import Recorder
from seer_sgl.sim.config import EngineConfig
from seer_sgl.types import Prompt
from tests.bench.test_summary import row

ENGINE = EngineConfig(
    count=2,
    kv_tokens=4096,
    max_running_requests=8,
    weights_gb=1e-6,
    active_params_b=1e-9,
    kv_bytes_per_token=1536,
    bandwidth_gb_s=5,
    overhead_ms=1,
    row_overhead_us=150,
    draft_overhead_us=50,
    prefill_tok_s=20_000,
)


def rolled(arm: str, **changed: Any) -> Rolled:
    """Two groups of four: one long, one short."""
    prompts = [
        Prompt(prompt_id=name, prompt_ids=array("i", [number] * 10), n=4)
        for number, name in enumerate("ab")
    ]
    lengths = {("a", i): 1000 + i for i in range(4)} | {("b", i): 50 + i for i in range(4)}
    record = Recorder("r", 0, [], [], 0.0)
    return Rolled(row(arm, 0, **changed), record, {}, lengths, prompts)


def test_every_arm_is_simulated_on_the_lengths_that_came_out() -> None:
    config = load_bench(ready_config(gpu=False))
    cases = {(arm, 1): rolled(arm, wall_s=2.0) for arm in (BASELINE, "router", "context", SEER)}
    found = predict(config, ENGINE, cases)["arms"]
    assert list(found) == [BASELINE, "context", SEER], "nobody simulates the router"
    pinned, divided, drafted = (found[arm]["predicted_wall_s"] for arm in found)
    assert pinned > divided > drafted > 0
    # The pinned engine decodes four rows: overhead, rows, and their KV, 511 tokens each on average.
    step_s = 1e-3 + 4 * 150e-6 + 4 * 511 * 1536 / 5e9
    assert pinned == pytest.approx(1003 * step_s, rel=0.02)
    assert found[BASELINE]["error"] == pytest.approx(pinned / 2.0 - 1, abs=1e-3)


def test_without_step_times_nothing_is_predicted() -> None:
    assert predict(load_bench(ready_config(gpu=False)), None, {}) == {}


def test_what_a_draft_adds_to_a_step() -> None:
    times = [
        [batch, width, 1 + 0.15 * batch + 0.05 * batch * (width - 1)]
        for batch in (1, 2, 4, 8)
        for width in (1, 3, 5, 9)
    ]
    assert draft_overhead_us(times) == pytest.approx(50)
