"""Measures what a journal costs, beside the CPU time of a rollout.

`python -m bench.journal --json` rolls a ready config out on its own SGLang servers, with a journal.
It prints the CPU time of all processes of the rollout, and the journal's own part of it: the calls
of its observer, and its thread. `--driver` measures the driver alone, which is the smaller part:
rollouts on fake engines (bench.driver), in turn without and with a journal.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop
from typing_extensions import override

from bench.driver import config, fakes, write_prompts
from seer_sgl import load_ready
from seer_sgl.config import with_values
from seer_sgl.driver.journal.folder import FILE
from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.writer import BlockWriter
from seer_sgl.engine.session import raise_file_limit
from seer_sgl.rollout import Rollout, journaled
from seer_sgl.types import ChunkResult


class Spent:
    """The CPU seconds of the journal's parts, and its blocks."""

    calls_s = 0.0
    thread_s = 0.0
    blocks = 0

    @classmethod
    def reset(cls) -> None:
        """Begins a new measurement."""
        cls.calls_s, cls.thread_s, cls.blocks = 0.0, 0.0, 0


class TimedJournal(Journal):
    """Measures the calls of the observer."""

    @override
    def grown(self, result: ChunkResult) -> None:
        began = time.thread_time()
        super().grown(result)
        Spent.calls_s += time.thread_time() - began


class TimedWriter(BlockWriter):
    """Measures the thread, and counts its blocks."""

    @override
    def _work(self) -> None:
        super()._work()
        Spent.thread_s += time.thread_time()

    @override
    def _write(self, records: Sequence[bytes]) -> None:
        Spent.blocks += 1
        super()._write(records)


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Returns the CPU seconds of processes since their start, with their ended children."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


async def real_rollout(options: argparse.Namespace) -> dict[str, Any]:
    """Rolls a ready config out with a journal. Returns the figures."""
    ready = with_values(load_ready(options.ready), {"rollout.journal": str(options.folder)})
    async with Rollout(ready, log_dir=options.folder.parent / "logs") as rollout:
        prompts = rollout.read_prompts(str(ready.rollout.prompts))
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        before = cpu_s(processes)
        async for _ in rollout.run(prompts):
            pass
        whole_s = cpu_s(processes) - before
        report = rollout.report()
    own_s = Spent.calls_s + Spent.thread_s
    size = (options.folder / FILE).stat().st_size
    return {
        "ready": options.ready,
        "chunks": report["chunks"],
        "response_tokens": report["response_tokens"],
        "rollout_cpu_s": round(whole_s, 2),
        "journal_cpu_s": round(own_s, 4),
        "journal_percent": round(100 * own_s / whole_s, 4),
        "journal_us_per_chunk": round(own_s / report["chunks"] * 1e6, 1),
        "blocks": Spent.blocks,
        "journal_bytes": size,
        "bytes_per_token": round(size / report["response_tokens"], 2),
    }


async def roll(urls: list[str], prompts: Path, options: argparse.Namespace, kept: bool) -> float:
    """Rolls out once on fake engines. Returns the CPU seconds of this process."""
    tree = config(urls, options.chunk_tokens, options.chunks * options.chunk_tokens)
    if kept:
        tree["rollout"]["journal"] = str(options.folder)
    async with Rollout(tree) as rollout:
        read = rollout.read_prompts(prompts)
        began = time.process_time()
        samples = sum([len(group.samples) async for group in rollout.run(read)])
        spent_s = time.process_time() - began
    assert samples == options.requests
    return spent_s


def driver_alone(urls: list[str], prompts: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rolls out in turn without and with a journal. Returns the figures."""
    chunks = options.requests * options.chunks
    plain, kept, own = [], [], []
    for number in range(options.rounds + 1):
        before = uvloop.run(roll(urls, prompts, options, kept=False))
        Spent.reset()
        after = uvloop.run(roll(urls, prompts, options, kept=True))
        if number:  # the first pair warms up
            plain.append(before / chunks * 1e6)
            kept.append(after / chunks * 1e6)
            own.append((Spent.calls_s + Spent.thread_s) / chunks * 1e6)
    without, own_us = statistics.median(plain), statistics.median(own)
    return {
        "chunks": chunks,
        "chunk_tokens": options.chunk_tokens,
        "rounds": options.rounds,
        "driver_us_per_chunk": round(without, 1),
        "driver_us_per_chunk_range": [round(min(plain), 1), round(max(plain), 1)],
        "with_journal_us_per_chunk": round(statistics.median(kept), 1),
        "journal_us_per_chunk": round(own_us, 2),
        "journal_percent_of_driver": round(100 * own_us / without, 2),
        "blocks": Spent.blocks,
        "bytes_per_token": round(
            (options.folder / FILE).stat().st_size / chunks / options.chunk_tokens, 2
        ),
    }


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Returns the figures of the chosen measurement."""
    if not options.driver:
        return uvloop.run(real_rollout(options))
    with fakes(options, options.requests) as urls:
        write_prompts(options, scratch / "prompts.jsonl")
        return driver_alone(urls, scratch / "prompts.jsonl", options)


def main() -> None:
    """Measures, and prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ready", default="cpu-seer", help="a ready config")
    parser.add_argument("--driver", action="store_true", help="measure the driver alone")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--input-tokens", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--chunks", type=int, default=4, help="chunks per request")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rollouts")
    parser.add_argument("--folder", type=Path, help="folder of the journal; its disk matters")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    for name, timed in (("Journal", TimedJournal), ("BlockWriter", TimedWriter)):
        setattr(journaled, name, timed)
    raise_file_limit()
    scratch = Path(tempfile.mkdtemp())
    options.folder = options.folder or scratch / "journal"
    try:
        figures = measure(options, scratch)
    finally:
        shutil.rmtree(scratch)
    if not options.json:
        for key, value in figures.items():
            print(f"{key:28} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
