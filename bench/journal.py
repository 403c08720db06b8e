"""Measures what a journal costs the driver: rollouts with and without one, on fake engines.

`python -m bench.journal --json` rolls out like bench.driver, several times without and with a
journal. It prints the CPU time of the driver's process per chunk (medians), the journal's own part
of it (the calls of its observer, and its thread), and the size of the journal. `--folder`: where
the journal is written; its disk decides the cost of a sync.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvloop
from typing_extensions import override

from bench.driver import config, start_fakes, write_prompts
from seer_sgl.driver.journal import writer
from seer_sgl.driver.journal.folder import FILE
from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.writer import BlockWriter
from seer_sgl.engine.session import raise_file_limit
from seer_sgl.rollout import Rollout, journaled
from seer_sgl.types import ChunkResult


class Spent:
    """The CPU time of the journal's parts in seconds, and its syncs."""

    def __init__(self) -> None:
        self.calls_s = 0.0
        self.thread_s = 0.0
        self.blocks = 0


spent = Spent()


class TimedJournal(Journal):
    """Measures the calls of the observer."""

    @override
    def grown(self, result: ChunkResult) -> None:
        began = time.thread_time()
        super().grown(result)
        spent.calls_s += time.thread_time() - began


class TimedWriter(BlockWriter):
    """Measures the thread, and counts its blocks."""

    @override
    def _work(self) -> None:
        super()._work()
        spent.thread_s += time.thread_time()
        assert threading.current_thread().name == "journal"

    @override
    def _write(self, records: Any) -> None:
        spent.blocks += 1
        super()._write(records)


async def roll(urls: list[str], prompts: Path, options: argparse.Namespace, kept: bool) -> float:
    """Rolls out once. Returns the CPU seconds of this process."""
    tree = config(urls, options.chunk_tokens, options.chunks * options.chunk_tokens)
    if kept:
        tree["rollout"]["journal"] = str(options.folder)
    async with Rollout(tree) as rollout:
        read = rollout.read_prompts(prompts)
        began = time.process_time()
        samples = sum([len(group.samples) async for group in rollout.run(read)])
        cpu_s = time.process_time() - began
    assert samples == options.requests
    return cpu_s


def measure(urls: list[str], prompts: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rolls out in turn without and with a journal. Returns the figures."""
    chunks = options.requests * options.chunks
    plain, kept = [], []
    for number in range(options.rounds + 1):
        before = uvloop.run(roll(urls, prompts, options, kept=False))
        spent.__init__()  # type: ignore[misc]
        after = uvloop.run(roll(urls, prompts, options, kept=True))
        if number:  # the first pair warms up
            plain.append(before / chunks * 1e6)
            kept.append(after / chunks * 1e6)
    own_us = (spent.calls_s + spent.thread_s) / chunks * 1e6
    size = (options.folder / FILE).stat().st_size
    without, with_journal = statistics.median(plain), statistics.median(kept)
    return {
        "chunks": chunks,
        "chunk_tokens": options.chunk_tokens,
        "rounds": options.rounds,
        "cpu_us_per_chunk": round(without, 1),
        "cpu_us_per_chunk_with_journal": round(with_journal, 1),
        "cpu_us_per_chunk_range": [round(min(plain), 1), round(max(plain), 1)],
        "difference_percent": round(100 * (with_journal / without - 1), 2),
        "own_us_per_chunk": round(own_us, 2),
        "own_calls_us_per_chunk": round(spent.calls_s / chunks * 1e6, 2),
        "own_thread_us_per_chunk": round(spent.thread_s / chunks * 1e6, 2),
        "own_percent": round(100 * own_us / without, 2),
        "blocks": spent.blocks,
        "gather_s": writer.GATHER_S,
        "journal_mb": round(size / 1e6, 2),
        "journal_bytes_per_token": round(size / chunks / options.chunk_tokens, 2),
    }


def main() -> None:
    """Measures, and prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--input-tokens", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--chunks", type=int, default=4, help="chunks per request")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rollouts")
    parser.add_argument("--folder", type=Path, default=None, help="folder of the journal")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    for name, timed in (("Journal", TimedJournal), ("BlockWriter", TimedWriter)):
        setattr(journaled, name, timed)
    raise_file_limit()
    scratch = Path(tempfile.mkdtemp())
    options.folder = options.folder or scratch / "journal"
    fakes, urls = start_fakes(options)
    try:
        write_prompts(options, scratch / "prompts.jsonl")
        figures = measure(urls, scratch / "prompts.jsonl", options)
    finally:
        shutil.rmtree(scratch)
        fakes.kill()
        fakes.wait()
    if not options.json:
        for key, value in figures.items():
            print(f"{key:32} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
