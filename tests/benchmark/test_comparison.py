"""`rollout --compare`: the plain config, the figures, and failures that cost nothing."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from seer_sgl import load_ready
from seer_sgl.benchmark import comparison as module
from seer_sgl.benchmark.comparison import (
    Comparison,
    plain_config,
    roll_out_and_compare,
)
from seer_sgl.benchmark.measure import TAKEN, Measurement, digest
from seer_sgl.config import Config, FleetConfig
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import EngineStartError, RolloutError
from seer_sgl.report.recorder import Recorder
from seer_sgl.rollout.command import RolledOut
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Failure, FailureKind
from tests.helpers import made_sample, make_group
from tests.support.infos import info
from tests.support.rows import row

REPORT: dict[str, Any] = {
    **dict.fromkeys(TAKEN, 0),
    "seed": 5,
    "samples": 2,
    "tail_s": 1.0,
    "throughput_tok_s": 300.0,
}


def compared(identical: int = 128) -> Comparison:
    return Comparison(
        seed=7,
        samples=128,
        identical=identical,
        speedup=1.796,
        seer_sgl={"wall_s": 36.42, "tail_s": 0.41},
        plain={"wall_s": 65.4, "tail_s": 9.4},
    )


def test_the_result_is_two_lines_with_both_times_and_the_identical_samples() -> None:
    assert compared().lines() == [
        "plain SGLang, whole groups pinned to engines: 65.4 s, tail 9.4 s",
        "seer-sgl: 36.4 s, tail 0.4 s: 1.80x as fast, all 128 samples identical",
    ]
    assert compared().doubt(deterministic=True) is None


def test_samples_that_differ_are_counted_and_explained() -> None:
    assert compared(120).lines()[1].endswith("120 of 128 samples identical")
    seeds, rounding = (compared(120).doubt(deterministic=each) or "" for each in (False, True))
    assert seeds.startswith("8 of 128 samples differ: ")
    assert "enable-deterministic-inference" in seeds
    assert "half precision" in rounding


def test_the_plain_config_lacks_seer_and_nothing_else() -> None:
    config = load_ready("cpu-seer")
    plain = plain_config(config)
    assert plain.kv_pool.backend == "none"
    assert plain.draft.scope == "none"
    assert plain.scheduling.policy == "group_round_robin"
    assert (plain.model, plain.engines, plain.sampling) == (
        config.model,
        config.engines,
        config.sampling,
    )
    assert plain.rollout.seed == config.rollout.seed
    limited = load_ready("cpu-seer", ["scheduling.max_inflight_per_engine=4", "rollout.seed=null"])
    assert plain_config(limited).scheduling.max_inflight_per_engine is None
    assert plain_config(limited).rollout.seed is None, "the rollout draws it"


class Rollouts:
    """Replaces both rollouts, of two empty samples each, and the plain engines.

    `different`: the index of a plain sample that differs. `error`: raised when the plain engines
    start. `endless`: the plain rollout does not end. `wall_s`: of the first rollout.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.configs: list[Config] = []
        self.different: int | None = None
        self.error: BaseException | None = None
        self.endless = False
        self.wall_s = 20.0
        self.group = make_group("g", n=2)
        monkeypatch.setattr(module, "roll_out", self._roll_out)
        monkeypatch.setattr(module, "open_fleet", self._open_fleet)
        monkeypatch.setattr(module, "roll", self._roll)

    async def _roll_out(
        self, config: Config, out: Path, *_: Any, observers: Sequence[Observer] = ()
    ) -> RolledOut:
        self.configs.append(config)
        for request in self.group.requests:
            request.finish("stop", None, 1.0)
            for observer in observers:
                observer.finished(request, made_sample(request))
        return RolledOut([self.group.prompt], {**REPORT, "wall_s": self.wall_s})

    @contextlib.asynccontextmanager
    async def _open_fleet(self, config: FleetConfig, log_dir: Path) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        yield SimpleNamespace(engines=[SimpleNamespace(info=info("a"))])

    async def _roll(self, arm: str, fleet: Any, config: Config, work: Any, **_: Any) -> Measurement:
        self.configs.append(config)
        if self.endless:
            await asyncio.Event().wait()
        contents = [b"other" if i == self.different else b"" for i in range(2)]
        digests = {("g", i): digest(content) for i, content in enumerate(contents)}
        figures = row(arm, 0, throughput_tok_s=100.0)
        record = Recorder("r", 5, [info("a")], [self.group], 0.0)
        return Measurement(figures, record, digests, {}, work.prompts)


@pytest.fixture
def rollouts(monkeypatch: pytest.MonkeyPatch) -> Rollouts:
    return Rollouts(monkeypatch)


async def compare(out: Path, timing: Timing = DEFAULT) -> None:
    config = load_ready("cpu-seer", ["rollout.seed=null"])
    await roll_out_and_compare(config, out, True, Console(quiet=True), timing)


async def test_a_comparison_is_written_for_scripts(
    rollouts: Rollouts, tmp_path: Path, log_lines: list[str]
) -> None:
    await compare(tmp_path)
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert (written["seed"], written["samples"], written["identical"]) == (5, 2, 2)
    assert written["speedup"] == 3.0
    assert (written["seer_sgl"]["wall_s"], written["plain"]["wall_s"]) == (20.0, 10.0)
    assert set(written["seer_sgl"]) == set(written["plain"]) == set(TAKEN)
    assert rollouts.configs[1].rollout.seed == 5, "the seed that the rollout drew"
    assert log_lines[-1].endswith("3.00x as fast, all 2 samples identical")


async def test_samples_that_differ_are_a_warning_at_the_end(
    rollouts: Rollouts, tmp_path: Path, log_lines: list[str]
) -> None:
    rollouts.different = 1
    await compare(tmp_path)
    assert log_lines[-1].startswith("1 of 2 samples differ: in half precision")
    assert json.loads((tmp_path / "comparison.json").read_text())["identical"] == 1


async def test_a_sample_that_failed_is_not_one_that_differs(
    rollouts: Rollouts, tmp_path: Path, log_lines: list[str]
) -> None:
    rollouts.group.requests[1].failure = Failure(FailureKind.LOST, "its chunks keep failing")
    rollouts.different = 1
    await compare(tmp_path)
    assert log_lines[-1].endswith("all 1 samples identical")


async def test_a_failed_comparison_is_one_line(rollouts: Rollouts, tmp_path: Path) -> None:
    rollouts.error = EngineStartError("engine e0 ended; the end of e0.log:\nTraceback\n")
    with pytest.raises(RolloutError) as raised:
        await compare(tmp_path)
    assert str(raised.value) == (
        f"--compare: engine e0 ended; see e0.log; the rollout in {tmp_path} is complete"
    )
    assert not (tmp_path / "comparison.json").exists()


async def test_a_plain_rollout_that_takes_too_long_is_stopped(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    rollouts.endless = True
    rollouts.wall_s = 0.0
    with pytest.raises(RolloutError, match="plain SGLang had 0 of 2 samples after 0 s and was"):
        await compare(tmp_path, Timing(compare_least_s=0.01))


async def test_an_interrupt_of_the_comparison_stays_one(
    rollouts: Rollouts, tmp_path: Path, log_lines: list[str]
) -> None:
    rollouts.error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await compare(tmp_path)
    assert log_lines[-1] == f"the comparison is incomplete; the rollout in {tmp_path} is complete"
