"""The simulation of a benchmark."""

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bench.full import prediction
from bench.full.constants import draft_overhead_us, fitted_step
from bench.full.prediction import measure_constants, predict
from seer_sgl.benchmark.arms import BASELINE, EVERY, SEER, Arm
from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import Runner
from seer_sgl.config import SchedulingConfig
from seer_sgl.errors import EngineStartError, EngineUnavailable, PoolError, SeerError
from seer_sgl.report.recorder import Recorder
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.source import load_settings
from seer_sgl.types import Prompt
from tests.support.rows import row

SIM = Path(prediction.__file__).with_name("cpu.yaml")
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


def rolled(arm: str, **changed: Any) -> Measurement:
    """Returns a measurement of two groups of four: one long, one short."""
    prompts = [
        Prompt(prompt_id=name, prompt_ids=array("i", [number] * 10), n=4)
        for number, name in enumerate("ab")
    ]
    lengths = {("a", i): 1000 + i for i in range(4)} | {("b", i): 50 + i for i in range(4)}
    record = Recorder("r", 0, [], [], 0.0)
    return Measurement(row(arm, 0, **changed), record, {}, lengths, prompts)


def test_every_arm_is_simulated_on_the_lengths_that_came_out() -> None:
    cases = [rolled(arm, wall_s=2.0) for arm in (BASELINE, "router", "context", SEER)]
    scheduling = SchedulingConfig(chunk_tokens=256)
    report = predict(load_settings(SIM), ENGINE, scheduling, cases)["arms"]
    assert list(report) == [BASELINE, "context", SEER], "the simulator has no router"
    pinned, divided, drafted = (report[arm]["predicted_wall_s"] for arm in report)
    assert pinned > divided > drafted > 0
    # The pinned engine decodes four rows: overhead, rows, and their KV, 511 tokens each on average.
    step_s = 1e-3 + 4 * 150e-6 + 4 * 511 * 1536 / 5e9
    assert pinned == pytest.approx(1003 * step_s, rel=0.02)
    assert report[BASELINE]["error"] == pytest.approx(pinned / 2.0 - 1, abs=1e-3)


def test_the_report_says_what_the_simulation_assumes() -> None:
    sim = load_settings(SIM)
    report = predict(sim, ENGINE, SchedulingConfig(), [])
    assert report["engine"]["reserve_tokens"] == 128
    assert report["speculation"] == msgspec.to_builtins(sim.speculation)


@pytest.mark.parametrize("path", sorted(SIM.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_a_simulation_has_what_a_measurement_does_not_bring(path: Path) -> None:
    settings = load_settings(path)
    own = msgspec.structs.replace(settings.engine, reserve_tokens=EngineConfig().reserve_tokens)
    assert own == EngineConfig(), "step times are measured"
    assert settings.workload == SimConfig().workload, "lengths are measured"


class Servers:
    """A runner whose servers run, or fail to start with an error per arm."""

    config = load_ready_bench(gpu=False)
    arms = (EVERY[BASELINE], EVERY[SEER])

    def __init__(self, **broken: SeerError) -> None:
        self.fleets = self
        self._broken = broken

    async def of(self, arm: Arm) -> Any:
        if arm.name in self._broken:
            raise self._broken[arm.name]
        return SimpleNamespace(engines=[SimpleNamespace(info=None, drafting=self._drafting)])

    async def _drafting(self) -> dict[str, Any]:
        return {"forward_ms": [[b, w, 1 + 0.1 * b + 0.05 * b * (w - 1)] for b, w in GRID]}


GRID = [(batch, width) for batch in (1, 2, 4) for width in (1, 3, 5)]


async def constants(monkeypatch: pytest.MonkeyPatch, runner: Servers) -> EngineConfig | None:
    async def measured(*_: Any) -> EngineConfig:
        return PLAIN

    monkeypatch.setattr(prediction, "measured_engine", measured)
    return await measure_constants(cast(Runner, runner))


PLAIN = msgspec.structs.replace(ENGINE, draft_overhead_us=None)


async def test_step_times_of_servers_that_come_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "seer_sgl")
    engine = await constants(monkeypatch, Servers())
    assert engine is not None
    assert engine.draft_overhead_us == pytest.approx(50)
    assert caplog.messages == ["measuring step times"]


@pytest.mark.parametrize(
    "error", [EngineStartError("no"), PoolError("no"), EngineUnavailable("no")]
)
async def test_servers_that_do_not_come_up_end_no_benchmark(
    error: SeerError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "seer_sgl")
    assert await constants(monkeypatch, Servers(seer=error)) == PLAIN
    assert caplog.messages[1:] == ["simulating without the verification time of drafts: no"]
    caplog.clear()
    assert await constants(monkeypatch, Servers(**{BASELINE: error})) is None
    assert caplog.messages[1:] == ["skipping the simulation: no"]


def test_what_a_step_consists_of() -> None:
    steps = [
        (rows, rows * tokens, 2e-3 + 1e-4 * rows + 3e-7 * rows * tokens)
        for rows in (1, 4, 16)
        for tokens in (64.0, 548.0, 1548.0)
    ]
    assert fitted_step(steps) == pytest.approx((2e-3, 1e-4, 3e-7))
    rows, tokens, slowest = steps[-1]
    overhead, _, _ = fitted_step([*steps[:-1], (rows, tokens, 1.1 * slowest)])
    assert overhead == pytest.approx(2e-3, rel=0.1), "one long step does not shift the short ones"


def test_what_a_draft_adds_to_a_step() -> None:
    times = [
        [batch, width, 1 + 0.15 * batch + 0.05 * batch * (width - 1)]
        for batch in (1, 2, 4, 8)
        for width in (1, 3, 5, 9)
    ]
    assert draft_overhead_us(times) == pytest.approx(50)
