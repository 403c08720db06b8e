"""The output of a benchmark, also after failures."""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from seer_sgl.benchmark.command import bench
from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import ArmFailure, Runner
from seer_sgl.errors import RolloutError
from seer_sgl.report.recorder import Recorder
from tests.support.rows import row

pytestmark = pytest.mark.process


async def test_an_arm_that_failed_is_in_the_report_and_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def rounds(runner: Runner) -> AsyncIterator[Measurement]:
        runner.failures.append(ArmFailure("seer", 0, "it broke"))
        record = Recorder("r", 0, [], [], 0.0)
        yield Measurement(row("divided", 0), record, {}, {}, [], {"chunks": 7})

    monkeypatch.setattr(Runner, "rounds", rounds)
    overrides = ["engines.api_key=secret", "bench.arms=[divided, seer]"]
    config = load_ready_bench(gpu=False, overrides=overrides)
    console = Console(file=io.StringIO())
    with pytest.raises(RolloutError, match="arms failed: seer"):
        await bench(Runner(config, tmp_path / "out"), console)
    text = (tmp_path / "out" / "report.json").read_text()
    assert json.loads(text)["failures"] == [{"arm": "seer", "round": 0, "error": "it broke"}]
    assert (tmp_path / "out" / "reports.jsonl").read_text() == '{"chunks":7}\n'
    assert "secret" not in text + (tmp_path / "out" / "report.md").read_text()
