"""`python -m bench.full`: the router's arm, the soak, and what its report has in addition."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.full import __main__, router, runner
from bench.full.prediction import Constants
from bench.full.router import ROUTER
from bench.full.runner import FullRunner, run_full
from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import Runner
from seer_sgl.errors import ConfigError, EngineStartError, RolloutError
from seer_sgl.report.recorder import Recorder
from seer_sgl.sim.config import EngineConfig, SimConfig
from tests.support.rows import row, soak_row

ARMS = "bench.arms=[group_round_robin, seer]"


def new_runner(out: Path, *overrides: str, **options: Any) -> FullRunner:
    config = load_ready_bench(gpu=False, overrides=[ARMS, "bench.rounds=2", *overrides])
    return FullRunner(config, out, **({"sim": None, "rollouts": 3, "router": False} | options))


class Rolls:
    """Replaces rollouts on servers. `broken`: the arm that fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: str = "") -> None:
        self.soaks = 0
        self._broken = broken
        monkeypatch.setattr(Runner, "once", self._once)
        monkeypatch.setattr(runner, "soak", self._soak)
        monkeypatch.setattr(runner, "can_draw", lambda: False)
        monkeypatch.setattr("seer_sgl.benchmark.command.can_draw", lambda: False)
        monkeypatch.setattr("seer_sgl.benchmark.command._commit", lambda: None)

    async def _once(self, arm: Any, number: int, seed: int) -> Measurement:
        if arm.name == self._broken:
            raise EngineStartError("it broke")
        return Measurement(row(arm.name, number), Recorder("r", 0, [], [], 0.0), {}, {}, [])

    async def _soak(self, _: Any, rollouts: int) -> AsyncIterator[Any]:
        for number in range(rollouts):
            self.soaks += 1
            yield soak_row(number)


def console() -> Console:
    return Console(file=io.StringIO())


async def test_the_report_has_router_lanes_and_soak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Rolls(monkeypatch)
    monkeypatch.setattr(router, "find_spec", lambda _: True)
    await run_full(new_runner(tmp_path, router=True), console())
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["arms"]) == ["group_round_robin", "router", "seer"]
    idle = {one["arm"]: one["idle"] for one in report["rounds"]}
    assert idle == {"group_round_robin": [0.0, 0.4], "router": None, "seer": [0.0, 0.4]}
    assert [one["number"] for one in report["soak"]] == [0, 1, 2]
    assert report["predicted"] == {}
    page = (tmp_path / "report.md").read_text()
    assert "## Soak" in page and "lanes.png" in page and "## Simulated" not in page
    assert json.loads((tmp_path / "lanes.json").read_text())["seed"] == 1


async def test_there_is_no_soak_of_an_arm_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rolls = Rolls(monkeypatch, broken="seer")
    with pytest.raises(RolloutError, match="arms failed: seer"):
        await run_full(new_runner(tmp_path), console())
    assert rolls.soaks == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["soak"], report["failures"][0]["arm"]) == ([], "seer")


def test_the_router_runs_where_it_is_installed_and_servers_have_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(router, "find_spec", lambda _: True)
    with pytest.raises(ConfigError, match=r"--router: .* without an API key"):
        new_runner(tmp_path, "engines.api_key=k", router=True)
    assert new_runner(tmp_path, router=True).arms[1] is ROUTER
    monkeypatch.setattr(router, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="--router: sglang_router is not installed"):
        new_runner(tmp_path, router=True)


def test_it_has_the_options_of_the_product(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[FullRunner] = []
    monkeypatch.setattr(__main__, "run", lambda _: None)
    monkeypatch.setattr(__main__, "run_full", lambda full, _: given.append(full))
    options = ["--soak", "4", "--out", str(tmp_path), "--rounds", "7", "--set", ARMS]
    monkeypatch.setattr("sys.argv", ["bench.full", *options])
    __main__.main()
    (full,) = given
    assert (full.config.bench.rounds, full.out, full.sim) == (7, tmp_path, None)


@pytest.mark.parametrize(("beside", "measured"), [("true", 3), ("false", 1)])
async def test_costs_are_measured_around_every_round_if_no_server_has_to_stop_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, beside: str, measured: int
) -> None:
    Rolls(monkeypatch)
    made: list[Constants] = []

    async def measure(_: object) -> Constants:
        made.append(Constants(engine=EngineConfig(overhead_ms=len(made))))
        return made[-1]

    def predict(_: object, constants: dict[int, list[Constants]], *__: object) -> dict[str, Any]:
        rounds = [[one.engine.overhead_ms for one in around] for around in constants.values()]
        times = {"wall_s": 4, "predicted_wall_s": 3, "error": -0.25, "tail_s": 1}
        steps = {"predicted_tail_s": 2, "forward_steps": 7000, "predicted_forward_steps": 7100}
        return {"rounds": rounds, "constants": {}, "arms": {"seer": times | steps}}

    monkeypatch.setattr(runner, "measure_constants", measure)
    monkeypatch.setattr(runner, "predict", predict)
    full = new_runner(tmp_path, f"bench.colocate_servers={beside}", sim=SimConfig())
    await run_full(full, console())
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(made) == measured
    assert report["predicted"]["rounds"] == ([[0, 1], [1, 2]] if measured > 1 else [[0, 0]] * 2)
    page = (tmp_path / "report.md").read_text()
    assert "| seer | 4.0 | 3.0 | -25% | 1.0 | 2.0 | 7,000 | 7,100 |" in page
