"""`seer-sgl rollout` killed with SIGKILL and resumed: every sample once, as if undisturbed."""

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.rollout.fakes import Fakes, fakes, journal_now
from tests.support.killed import REQUESTS, check_samples, driver, prepare
from tests.support.waiting import until

pytestmark = pytest.mark.process


async def killed_once(folder: Path, it: Fakes, calls: int, *options: str) -> bool:
    """Kills a driver after so many calls. Returns whether that was before its end."""
    before = len(it.seeds())
    async with driver(folder, *options) as it_runs:
        await until(
            lambda: len(it.seeds()) - before >= calls or it_runs.process.returncode is not None
        )
        await it_runs.kill()
        return it_runs.process.returncode == -9


async def completed(folder: Path, *options: str) -> str:
    """Runs a driver to its end. Returns its output."""
    async with driver(folder, *options) as it_runs:
        output = await it_runs.end()
        assert it_runs.process.returncode == 0, output
    return output


async def rolled_with_kills(folder: Path, it: Fakes, moments: Sequence[int]) -> int:
    """A rollout that is killed after so many calls each, and resumed. Returns the kills."""
    journal, kills = prepare(folder, it), 0
    options: list[str] = []
    for moment in moments:
        finished = journal_now(journal).finished if options else set()
        calls = len(it.seeds())
        killed = await killed_once(folder, it, moment, *options)
        assert not finished & set(it.seeds()[calls:]), "a finished request was sent again"
        if not (journal / "journal").exists():  # killed before the first chunk was sent
            continue
        kills += killed
        options = ["--resume", str(journal)]
    before, calls = journal_now(journal), len(it.seeds())
    output = await completed(folder, *options)
    assert not before.finished & set(it.seeds()[calls:]), "a finished request was sent again"
    check_samples(folder)
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["samples"] == REQUESTS
    if "is complete" not in output:
        assert report["resumed"]["samples"] == len(before.finished)
        assert report["resumed"]["tokens"] == before.tokens
    return kills


async def test_a_killed_driver_loses_nothing_also_when_killed_again(tmp_path: Path) -> None:
    async with fakes(delay_s=0.05, max_running_requests=4) as it:
        assert await rolled_with_kills(tmp_path, it, [30, 20]) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_a_driver_killed_at_random_moments_loses_nothing(tmp_path: Path, seed: int) -> None:
    async with fakes(delay_s=0.05, max_running_requests=4) as it:
        draw = random.Random(seed)
        moments = [draw.randint(2, 50) for _ in range(draw.randint(1, 3))]
        assert await rolled_with_kills(tmp_path, it, moments) >= 1


async def test_a_complete_rollout_writes_the_same_files_again_and_keeps_no_others(
    tmp_path: Path,
) -> None:
    async with fakes() as it:
        journal = prepare(tmp_path, it)
        await completed(tmp_path)
    # The fakes have ended: no engine is asked.
    own, other = tmp_path / "out", tmp_path / "other"
    written = {name: (own / name).read_bytes() for name in ("samples.jsonl", "report.json")}
    other.mkdir()
    (other / "samples.jsonl").write_text('{"rollout_id":"other"}\n')
    for folder, kept in ((own, True), (other, False)):
        files = [folder / "comparison.json", folder / "timeline.png", folder / "timeline.svg"]
        for file in files:
            file.touch()
        again = ("--resume", str(journal), "--out", str(folder), "--overwrite")
        assert "the rollout is complete" in await completed(tmp_path, *again)
        assert {name: (folder / name).read_bytes() for name in written} == written
        assert [file.exists() for file in files] == [kept] * len(files)


@pytest.mark.parametrize("torn", [b"", b'{"rollout_id":'])
async def test_a_samples_file_without_a_sample_stands_in_no_way(
    tmp_path: Path, torn: bytes
) -> None:
    async with fakes(delay_s=5.0) as it:
        journal = prepare(tmp_path, it)
        async with driver(tmp_path) as first:
            await until(lambda: bool(it.seeds()))
            first.process.send_signal(signal.SIGINT)
            output = await first.end()
            assert first.process.returncode == 130, output
        samples = tmp_path / "out" / "samples.jsonl"
        assert samples.read_bytes() == b"", "it was interrupted before the first sample"
        samples.write_bytes(torn)  # a machine that stopped in the middle of the first line
        for fake in it.servers:
            fake.delay_s = 0.0
        await completed(tmp_path, "--resume", str(journal))
        check_samples(tmp_path)
