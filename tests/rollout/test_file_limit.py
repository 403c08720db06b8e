"""A rollout whose process may open few files: it runs with fewer requests at once and loses
nothing."""

import json
import resource
from pathlib import Path

import pytest

from tests.rollout.fakes import fakes
from tests.support.killed import check_samples, driver, prepare, samples_in
from tests.support.waiting import until

pytestmark = pytest.mark.process


def check(folder: Path) -> None:
    """Asserts every sample once, with its tokens, and a report of a complete rollout."""
    check_samples(folder)
    assert json.loads((folder / "out" / "report.json").read_text())["error"] is None


async def test_few_files_mean_fewer_requests_at_once(tmp_path: Path) -> None:
    async with fakes(delay_s=0.1) as it:
        prepare(tmp_path, it)
        async with driver(tmp_path, limit=70) as few:
            output = await few.end()
        assert few.process.returncode == 0, output
    warnings = [line for line in output.splitlines() if line.startswith("warning")]
    allowed = "the limit of open files allows 10 requests at once, of 24 that the engines would run"
    assert warnings == [f"warning: {allowed}; raise it with `ulimit -n`"]
    check(tmp_path)


async def test_a_limit_that_falls_during_a_rollout_loses_nothing(tmp_path: Path) -> None:
    async with fakes(delay_s=0.1) as it:
        prepare(tmp_path, it)
        async with driver(tmp_path) as fewer:
            await until(lambda: (tmp_path / "out/samples.jsonl").exists() and samples_in(tmp_path))
            resource.prlimit(fewer.process.pid, resource.RLIMIT_NOFILE, (40, 40))
            output = await fewer.end()
    assert (fewer.process.returncode, "Traceback" in output) == (0, False), output
    check(tmp_path)


async def test_too_few_files_for_the_engines_are_one_line_and_status_2(tmp_path: Path) -> None:
    async with fakes() as it:
        prepare(tmp_path, it)
        async with driver(tmp_path, limit=50) as none:
            *_, last = (await none.end()).splitlines()
        assert none.process.returncode == 2
        assert not it.seeds()
    complaint = "the limit of open files, 50, is too low for 2 engines; raise it with `ulimit -n`"
    assert last == f"seer-sgl: {complaint}"
