"""A rollout whose process may open few files: it runs with fewer requests at once and loses
nothing."""

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang, response_of, serving
from tests.support.waiting import until

pytestmark = pytest.mark.process

LONGEST = 60
SIZE = 8  # samples of a prompt
PROMPTS = [[5] * length for length in range(3, 15)]
Start = Callable[[int | None], "subprocess.Popen[bytes]"]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Returns a function that starts a rollout on two fake servers, with a limit of open files."""
    prompts, lens = tmp_path / "p.jsonl", dict[int, int]()
    prompts.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in PROMPTS))
    fakes = [FakeSGLang(delay_s=0.1, longest=LONGEST, prompt_lens=lens) for _ in range(2)]

    def begin(limit: int | None) -> "subprocess.Popen[bytes]":
        limited = "" if limit is None else f"ulimit -n {limit}; "
        engines = f"engines={{launch: external, urls: [{first}, {second}]}}"
        return subprocess.Popen(
            [
                *("sh", "-c", f'{limited}exec "$@"', "sh"),
                *(sys.executable, "-m", "seer_sgl", "rollout"),
                *("--prompts", str(prompts), "--out", str(tmp_path / "out")),
                *("--set", engines, "--set", "scheduling.chunk_tokens=16"),
                *("--set", f"sampling.max_response_len={LONGEST}"),
                *("--set", f"rollout.n_samples_per_prompt={SIZE}"),
            ],
            stderr=subprocess.PIPE,
        )

    async with serving(fakes[0]) as first, serving(fakes[1]) as second:
        yield begin


def samples(out: Path) -> list[dict[str, Any]]:
    """Returns the samples so far; each line must be whole."""
    path = out / "samples.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def check(out: Path) -> None:
    """Asserts every sample once, with its tokens, and a report of a complete rollout."""
    found = samples(out)
    places = [(len(sample["prompt_ids"]), sample["index"]) for sample in found]
    assert sorted(places) == [(len(ids), index) for ids in PROMPTS for index in range(SIZE)]
    for sample in found:
        whole = response_of(sample["seed"], len(sample["prompt_ids"]), LONGEST)
        assert sample["response_ids"] == whole
    report = json.loads((out / "report.json").read_text())
    assert (report["samples"], report["error"]) == (len(found), None)
    assert (out / "timeline.svg").exists()


async def ended(process: "subprocess.Popen[bytes]") -> tuple[int, list[str]]:
    """Waits for the end of the process; returns its exit status and the lines of its output."""
    _, output = await asyncio.to_thread(process.communicate, timeout=120)
    return process.returncode, output.decode().splitlines()


async def test_few_files_mean_fewer_requests_at_once(start: Start, tmp_path: Path) -> None:
    status, lines = await ended(start(100))
    warnings = [line for line in lines if line.startswith("warning")]
    allowed = "the limit of open files allows 33 requests at once, of 96 that the engines would run"
    assert warnings == [f"warning: {allowed}; raise it with `ulimit -n`"]
    assert status == 0
    check(tmp_path / "out")


async def test_a_limit_that_falls_during_a_rollout_loses_nothing(
    start: Start, tmp_path: Path
) -> None:
    process = start(None)
    await until(lambda: len(samples(tmp_path / "out")) > 5 or process.poll() is not None)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (40, 40))
    status, lines = await ended(process)
    assert (status, [line for line in lines if "Traceback" in line]) == (0, [])
    check(tmp_path / "out")


async def test_too_few_files_for_the_engines_are_one_line_and_status_2(
    start: Start, tmp_path: Path
) -> None:
    status, lines = await ended(start(50))
    assert status == 2
    complaint = "the limit of open files, 50, is too low for 2 engines; raise it with `ulimit -n`"
    assert lines[-1] == f"seer-sgl: {complaint}"
    assert samples(tmp_path / "out") == []
