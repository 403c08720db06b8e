"""Measures the cost of the driver alone: a rollout against fake engines in another process.

`python -m bench.driver --json` rolls out 10,000 requests with different inputs of 8k tokens on 64
fake engines, all in flight at once. It measures chunk completions per second, CPU microseconds per
chunk by function, and peak memory relative to the tokens' own size (4 bytes per token and 4 per
logprob). The fakes run in another process and answer at once without reading the request.

With `--open N`, N requests are open at a time: another one joins when one has ended, and finished
samples leave the driver, as they do in a trainer that takes them.
"""

import argparse
import asyncio
import contextlib
import cProfile
import functools
import itertools
import json
import pstats
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import psutil
import uvloop
from typing_extensions import override

from bench.fakes import running_fakes
from bench.memory import peak_mb
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.session import raise_file_limit
from seer_sgl.rollout import Rollout
from seer_sgl.types import ChunkResult, Prompt

BEAT_S = 0.05  # between two looks at the event loop
MARKS = 10  # measurements of memory while requests leave
Figures = dict[str, Any]


def config(urls: list[str], chunk_tokens: int, max_response_len: int) -> dict[str, Any]:
    """Returns the config of a rollout on fake engines."""
    return {
        "engines": {"launch": "external", "urls": urls},
        "scheduling": {"chunk_tokens": chunk_tokens},
        "sampling": {"max_response_len": max_response_len},
        "rollout": {"n_samples_per_prompt": 1, "seed": 1},
    }


def prompt_ids(number: int, options: argparse.Namespace) -> list[int]:
    """Returns the input of a request; no two of 100,000 in a row are equal."""
    return [(number * 7919 + k) % 100_000 for k in range(options.input_tokens)]


def write_prompts(options: argparse.Namespace, path: Path) -> None:
    """Writes one prompt per request."""
    with path.open("w") as output:
        for number in range(options.requests):
            output.write(json.dumps({"prompt_ids": prompt_ids(number, options)}) + "\n")


class Counts(Observer):
    """Counts the chunks of a run."""

    def __init__(self) -> None:
        self.chunks = self.lost_chunks = 0

    @override
    def grown(self, result: ChunkResult) -> None:
        self.chunks += 1

    @override
    def lost(self, result: ChunkResult) -> None:
        self.lost_chunks += 1


async def keep_beat(late_s: list[float]) -> None:
    """Notes how much later than asked the event loop continues, until cancelled."""
    while True:
        due = time.perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late_s.append(time.perf_counter() - due)


def rates(
    options: argparse.Namespace, engines: int, chunks: int, wall_s: float, cpu_s: float
) -> Figures:
    """Returns the figures of a rollout of so many chunks; `cpu_s`: of this process."""
    assert chunks == options.requests * options.chunks
    return {
        "requests": options.requests,
        "engines": engines,
        "input_tokens": options.input_tokens,
        "chunk_tokens": options.chunk_tokens,
        "chunks": chunks,
        "chunks_per_s": round(chunks / wall_s, 1),
        "cpu_us_per_chunk": round(cpu_s / chunks * 1e6, 1),
        "wall_s": round(wall_s, 2),
    }


async def measure_leaving(urls: list[str], options: argparse.Namespace) -> Figures:
    """Rolls requests out of which `options.open` are open at a time, and keeps none that ended.
    Returns the figures."""
    settings = config(urls, options.chunk_tokens, options.chunks * options.chunk_tokens)
    counts = Counts()
    late_s: list[float] = []
    memory_mb: list[float] = []
    async with Rollout(settings) as rollout:
        maker = GroupMaker("bench", 1)
        supply = (
            Prompt(prompt_id=str(number), prompt_ids=array("i", prompt_ids(number, options)), n=1)
            for number in range(options.requests)
        )

        def add(count: int) -> None:
            prompts = list(itertools.islice(supply, count))
            run.add(rollout.make_groups(prompts, maker, rollout.config.sampling))

        started, cpu_before = time.perf_counter(), time.process_time()
        run = rollout.driver.open_run([counts])
        beat = asyncio.create_task(keep_beat(late_s))
        add(options.open)
        every = max(1, options.requests // MARKS)
        for count in range(1, options.requests + 1):
            group = await anext(run)
            assert group.failure is None, group.failure
            (sample,) = group.samples
            assert len(sample.response_ids) == options.chunks * options.chunk_tokens
            add(1)
            if count % every == 0:
                memory_mb.append(round(psutil.Process().memory_info().rss / 1e6, 1))
        run.complete()
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before
        beat.cancel()
        assert not run.unfinished
    late_s.sort()
    return rates(options, len(urls), counts.chunks, wall_s, cpu_s) | {
        "open": options.open,
        "delay_s": options.delay_s,
        "lost_chunks": counts.lost_chunks,
        "lag_median_ms": round(late_s[len(late_s) // 2] * 1e3, 1),
        "lag_p99_ms": round(late_s[len(late_s) * 99 // 100] * 1e3, 1),
        "lag_max_ms": round(late_s[-1] * 1e3, 1),
        "memory_mb": memory_mb,
    }


async def measure(urls: list[str], options: argparse.Namespace, prompts_file: Path) -> Figures:
    """Rolls all requests out at once, and keeps their samples. Returns the figures."""
    settings = config(urls, options.chunk_tokens, options.chunks * options.chunk_tokens)
    async with Rollout(settings) as rollout:
        prompts = rollout.read_prompts(prompts_file)
        started, cpu_before = time.perf_counter(), time.process_time()
        samples = [sample async for group in rollout.run(prompts) for sample in group.samples]
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_before
        report = rollout.report()
        resident_mb = psutil.Process().memory_info().rss / 1e6
    assert len(samples) == options.requests
    figures = rates(options, len(urls), report["chunks"], wall_s, cpu_s)
    return figures | {"resident_mb": round(resident_mb, 1)}


def fakes(
    options: argparse.Namespace, running: int, processes: int = 1, delay_s: float = 0.0
) -> contextlib.AbstractContextManager[list[str]]:
    """Starts fake engines on which so many requests run at a time; yields their URLs."""
    return running_fakes(
        "tests.fake_sglang",
        processes,
        count=options.engines // processes,
        canned_tokens=options.chunk_tokens,
        delay_s=delay_s,
        longest=1 << 20,
        max_running_requests=-(-running // options.engines),
    )


def hot_spots(profile: cProfile.Profile, chunks: int, count: int = 12) -> list[dict[str, Any]]:
    """Returns the functions with the largest own time, in microseconds per chunk."""
    stats: Any = pstats.Stats(profile)
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])[:count]
    return [
        {"function": f"{Path(file).name}:{name}", "own_us_per_chunk": round(own / chunks * 1e6, 1)}
        for (file, _, name), (_, _, own, _, _) in rows
    ]


def main() -> None:
    """Measures without the profiler and, with --profile, once more with it; prints one JSON object
    last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--fakes", type=int, default=1, help="processes of the fake engines")
    parser.add_argument("--input-tokens", type=int, default=8192)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=2, help="chunks per request")
    parser.add_argument("--open", type=int, default=0, help="requests at a time (default: all)")
    parser.add_argument("--delay-s", type=float, default=0.0, help="time of a fake's reply")
    parser.add_argument("--profile", action="store_true", help="also report the time by function")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    raise_file_limit()
    running = fakes(options, options.open or options.requests, options.fakes, options.delay_s)
    with tempfile.TemporaryDirectory() as folder, running as urls:
        run = functools.partial(measure_leaving, urls, options)
        if not options.open:
            prompts_file = Path(folder) / "prompts.jsonl"
            write_prompts(options, prompts_file)
            run = functools.partial(measure, urls, options, prompts_file)
        base_mb = peak_mb()
        figures = uvloop.run(run())
        most_mb = peak_mb()
        if not options.open:
            response_tokens = options.chunks * options.chunk_tokens
            own_mb = options.requests * (options.input_tokens * 4 + response_tokens * 8) / 1e6
            figures |= {
                "peak_mb": round(most_mb, 1),
                "start_mb": round(base_mb, 1),
                "tokens_mb": round(own_mb, 1),
                "memory_ratio": round((most_mb - base_mb) / own_mb, 2),
            }
        if options.profile:
            profile = cProfile.Profile(time.process_time)
            profile.enable()
            again = uvloop.run(run())
            profile.disable()
            figures["profile"] = hot_spots(profile, again["chunks"])
    if not options.json:
        for key, value in figures.items():
            print(f"{key:18} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
