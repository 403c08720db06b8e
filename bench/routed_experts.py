"""Measures what routed experts cost the driver: a rollout against fake engines in another process.

`python -m bench.routed_experts --json` rolls out 200 requests of 8,192 tokens for a model of 48
layers and 8 of 128 experts per token, without routed experts and then with them. It writes
samples.jsonl as the command line does. It measures CPU time and peak memory of this process, and
how late its event loop was.
"""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.fakes import running_fakes
from seer_sgl.rollout import Rollout
from seer_sgl.rollout.samples import SampleWriter
from seer_sgl.routed_experts import ExpertShape

TICK_S = 0.002
POLL_S = 0.02


class Watch:
    """The lateness of the event loop, in seconds per tick, and the peak of resident memory."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.peak = 0
        self._ended = threading.Event()
        self._own = psutil.Process()

    async def __aenter__(self) -> "Watch":
        self._ticks = asyncio.create_task(self._tick())
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticks.cancel()
        self._ended.set()
        self._thread.join()

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.late.append(max(0.0, time.perf_counter() - began - TICK_S))

    def _look(self) -> None:
        while not self._ended.wait(POLL_S):
            self.peak = max(self.peak, self._own.memory_info().rss)


async def measure(
    urls: list[str], options: argparse.Namespace, folder: Path, experts: bool
) -> dict[str, Any]:
    """Runs one rollout. Returns its figures."""
    n, response = 4, options.tokens - options.input_tokens
    settings = {
        "engines": {"launch": "external", "urls": urls},
        "scheduling": {"chunk_tokens": options.chunk_tokens},
        "sampling": {"max_response_len": response, "return_routed_experts": experts},
        "rollout": {"n_samples_per_prompt": n, "seed": 1},
    }
    prompts = [
        {"prompt_ids": [(i * 7919 + k) % 100_000 for k in range(options.input_tokens)]}
        for i in range(options.requests // n)
    ]
    samples, size = 0, 0
    async with Rollout(settings) as rollout:
        writer = SampleWriter(folder / "samples.jsonl")
        before = psutil.Process().memory_info().rss
        wall, cpu = time.perf_counter(), time.process_time()
        async with Watch() as watch:
            async for group in rollout.run(prompts, [writer]):
                for sample in group.samples:
                    samples += 1
                    found = sample.routed_experts
                    size += 0 if found is None else len(found.data)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        writer.close()
        report = rollout.report()
    late = sorted(watch.late)
    return {
        "samples": samples,
        "chunks": report["chunks"],
        "lost_chunks": report["lost_chunks"],
        "rows_mb": round(size / 1e6, 1),
        "file_mb": round((folder / "samples.jsonl").stat().st_size / 1e6, 1),
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "cpu_ms_per_chunk": round(cpu_s / report["chunks"] * 1e3, 2),
        "begin_mb": round(before / 1e6, 1),
        "peak_mb": round(watch.peak / 1e6, 1),
        "loop_late_ms": {
            "median": round(late[len(late) // 2] * 1e3, 2),
            "99 %": round(late[len(late) * 99 // 100] * 1e3, 2),
            "most": round(late[-1] * 1e3, 2),
        },
    }


def main() -> None:
    """Measures without and with routed experts; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--running", type=int, default=16, help="requests per engine at once")
    parser.add_argument("--tokens", type=int, default=8192, help="prompt and response")
    parser.add_argument("--input-tokens", type=int, default=512)
    parser.add_argument("--chunk-tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    shape = ExpertShape(options.layers, options.top_k, options.experts)
    figures: dict[str, Any] = {"bytes_per_token": shape.row_bytes}
    engines = running_fakes(
        "tests.support.experts",
        shape={name: getattr(shape, name) for name in shape.__struct_fields__},
        count=options.engines,
        max_running_requests=options.running,
    )
    with tempfile.TemporaryDirectory() as folder, engines as urls:
        for name, experts in (("without", False), ("with", True)):
            figures[name] = uvloop.run(measure(urls, options, Path(folder), experts))
    if not options.json:
        for key, value in figures.items():
            print(f"{key:18} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
