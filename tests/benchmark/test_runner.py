"""The order of the arms; later rounds skip an arm that fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.benchmark import runner as module
from seer_sgl.benchmark.arms import EVERY
from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.benchmark.fleets import Fleets
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import ArmFailure, Runner
from seer_sgl.errors import EngineStartError, RolloutError
from seer_sgl.report.recorder import Recorder
from tests.support.rows import row

ARMS = [EVERY[name] for name in ("group_round_robin", "divided", "oracle")]


class Rolls:
    """Replaces rollouts on servers. `broken`: the arm that fails from a round on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, int] = ("", 0)) -> None:
        self.measured: list[tuple[int, int, str]] = []
        self.unmeasured: list[str] = []
        self.lengths: list[str | None] = []
        self._broken = broken
        monkeypatch.setattr(module, "roll", self._roll)
        monkeypatch.setattr(Fleets, "of", self._servers)

    async def _servers(self, arm: Any) -> Any:
        return arm.kind

    async def _roll(self, arm: str, _: Any, config: Any, work: Any, **named: Any) -> Measurement:
        number = named["number"]
        if number >= 0 and arm == self._broken[0] and number >= self._broken[1]:
            raise EngineStartError("it broke")
        if number < 0:
            self.unmeasured.append(arm)
        else:
            self.measured.append((number, work.seed, arm))
            self.lengths.append(config.scheduling.lengths)
        samples = sum(prompt.n for prompt in work.prompts)
        figures = row(arm, number, seed=work.seed, samples=samples)
        return Measurement(figures, Recorder("r", 0, [], [], 0.0), {}, {("g", 0): 7}, work.prompts)


def new_runner(tmp_path: Path, *overrides: str) -> Runner:
    arms = ",".join(arm.name for arm in ARMS)
    set_up = ["bench.rounds=4", f"bench.arms=[{arms}]", *overrides]
    return Runner(load_ready_bench(gpu=False, overrides=set_up), tmp_path)


@pytest.mark.parametrize(
    ("seeds", "back"),
    [([9, 1, 8], [False, True, False, True]), ([9, 1], [False, True, True, False])],
)
async def test_rounds_take_the_seeds_in_turn_and_the_arms_there_and_back(
    seeds: list[int], back: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rolls = Rolls(monkeypatch)
    async for _ in new_runner(tmp_path, f"bench.seeds={seeds}").rounds():
        pass
    there = [arm.name for arm in ARMS]
    for number, reverse in enumerate(back):
        arms, seed = there[::-1] if reverse else there, seeds[number % len(seeds)]
        assert rolls.measured[3 * number : 3 * number + 3] == [(number, seed, arm) for arm in arms]


async def test_servers_are_warm_and_lengths_known_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rolls = Rolls(monkeypatch)
    async for _ in new_runner(tmp_path).rounds():
        pass
    # Plain servers are warmed once and give each seed's reference; servers with a pool follow.
    assert rolls.unmeasured.count("group_round_robin") == 1 + 3
    assert rolls.unmeasured.count("oracle") == 1
    assert "divided" not in rolls.unmeasured, "it runs on the same servers"
    known = [path for path in rolls.lengths if path is not None]
    assert len(known) == 4
    truth = await asyncio.to_thread(Path(known[0]).read_text)
    assert truth == '{"group_id":"g","index":0,"response_length":7}\n'


async def test_an_arm_that_fails_is_left_out_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str], tmp_path: Path
) -> None:
    rolls = Rolls(monkeypatch, broken=("oracle", 1))
    runner = new_runner(tmp_path)
    async for _ in runner.rounds():
        pass
    assert runner.failures == [ArmFailure("oracle", 1, "it broke")]
    assert log_lines == ["arm oracle failed, later rounds skip it: it broke"]
    assert [arm for number, _, arm in rolls.measured if arm == "oracle"] == ["oracle"]
    assert len(rolls.measured) == 3 + 2 + 2 + 2


async def test_when_no_arm_is_left_the_benchmark_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(*_: Any, **__: Any) -> Measurement:
        raise RolloutError("nothing works")

    Rolls(monkeypatch)
    monkeypatch.setattr(module, "roll", broken)
    with pytest.raises(RolloutError, match="nothing works"):
        async for _ in new_runner(tmp_path).rounds():
            pass
