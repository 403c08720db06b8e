"""`make soak`: long runs of the checks that the tests have in short.

python -m tests.soak                                     # all three, about an hour on two cores
python -m tests.soak storms --first 17 --seeds 1         # repeats one seed
python -m tests.soak million --requests 1000000
python -m tests.soak http --requests 20000 --servers 16

Prints one JSON object per part. Exit status 1 and the seed if an invariant is broken.
"""

import argparse
import asyncio
import concurrent.futures
import json
import logging
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any

import msgspec

from tests.sim import storm
from tests.soak import http_storm, million

# The memory may be larger by this share in the second half of the rollout.
MEMORY_GROWTH = 0.1


def storms(options: argparse.Namespace) -> dict[str, Any]:
    """Runs storms of simulated engines, one per seed, on all cores."""
    counts: Counter[str] = Counter()
    failed: list[int] = []
    seeds = range(options.first, options.first + options.seeds)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), initializer=quiet) as pool:
        runs = {pool.submit(one_storm, seed, options.requests): seed for seed in seeds}
        for run in concurrent.futures.as_completed(runs):
            try:
                counts += run.result()
            except Exception:
                failed.append(runs[run])
                print(f"seed {runs[run]} failed; repeat it with", file=sys.stderr)
                print(f"python -m tests.sim.storm {runs[run]} {options.requests}", file=sys.stderr)
                traceback.print_exc()
    figures = {"seeds": options.seeds, "requests": options.requests, "failed": sorted(failed)}
    return {**figures, "faults": dict(sorted(counts.items()))}


def one_storm(seed: int, requests: int) -> Counter[str]:
    return storm.weather(seed, requests).counts


def one_million(options: argparse.Namespace) -> dict[str, Any]:
    figures = million.roll_out(options.requests, options.first)
    half = len(figures.blocks) // 2
    before, after = max(figures.blocks[:half]), max(figures.blocks[half:])
    failed = [] if after <= before * (1 + MEMORY_GROWTH) else ["memory grows"]
    return {**msgspec.to_builtins(figures), "failed": failed}


def http(options: argparse.Namespace) -> dict[str, Any]:
    result = asyncio.run(http_storm.weather(options.requests, options.servers, options.first))
    names = ("samples", "chunks", "lost_chunks")
    figures = {name: result.report[name] for name in names}
    return {**figures, "failed": [], "faults": dict(sorted(result.counts.items()))}


PARTS = {"storms": storms, "million": one_million, "http": http}
REQUESTS = {"storms": 1000, "million": 1_000_000, "http": 20_000}


def quiet() -> None:
    """Hides the driver's warnings about the faults."""
    logging.disable(logging.WARNING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--requests", type=int, help="per storm, or of the part")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1000, help="storms")
    parser.add_argument("--servers", type=int, default=16)
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(unknown)}")
    quiet()
    given, failed = options.requests, False
    for name in options.parts or PARTS:
        options.requests = given or REQUESTS[name]
        began, cpu = time.monotonic(), time.process_time()
        try:
            figures = PARTS[name](options)
        except Exception as error:
            traceback.print_exc()
            figures = {"failed": [repr(error)], "seed": options.first}
        wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
        times = {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1)}
        print(json.dumps({"part": name, **figures, **times}), flush=True)
        failed |= bool(figures["failed"])
    sys.exit(failed)


if __name__ == "__main__":
    main()
