"""Measures the host memory of engines with a KV pool, by SGLang's mode of it and by its share.

`python -m bench.host_memory [--json]` rolls out the same prompts on two real servers per arm, one
after the other; every chunk of 256 tokens moves over a pool of files. An arm is SGLang's
`--hicache-host-memory-mode` and the host's KV tokens per KV token of the device. Its row: host
memory as allocated per engine, resident memory of its scheduler process after the rollout, moves,
tokens computed again, and chunks whose KV did not reach the pool.
"""

import argparse
import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.kv_pool import config
from seer_sgl import Rollout

from .elsewhere import AlwaysElsewhere

KV_TOKENS, CHUNK, LONGEST = 8192, 256, 4000
ALLOCATED = re.compile(r"host pool: (\d+) tokens, ([\d.]+) GB host memory")


class Arm(NamedTuple):
    """SGLang's mode of host memory, and host KV tokens per device KV token."""

    mode: str
    ratio: float


ARMS = (
    Arm("cache", 2.0),
    Arm("cache", 1.1),
    Arm("buffer_only", 1.1),
    Arm("buffer_only", 0.75),
    Arm("buffer_only", 0.5),
)


def settings(arm: Arm, folder: Path) -> dict[str, Any]:
    """Returns the config of an arm."""
    own = config("file", CHUNK, folder)
    own["engines"]["sglang"] |= {
        "max-total-tokens": KV_TOKENS,
        "hicache-host-memory-mode": arm.mode,
    }
    own["kv_pool"]["host_ratio"] = arm.ratio
    own["rollout"]["n_samples_per_prompt"] = 16
    own["sampling"]["max_response_len"] = LONGEST
    return own


def resident() -> list[int]:
    """Returns the bytes of the engines' scheduler processes, which hold all KV."""
    return [
        child.memory_info().rss
        for child in psutil.Process().children(recursive=True)
        if child.name().startswith("sglang::sched")
    ]


async def measure(arm: Arm, prompts: int) -> dict[str, Any]:
    """Returns the row of an arm."""
    with tempfile.TemporaryDirectory() as scratch:
        logs = Path(scratch) / "logs"
        rollout = Rollout(
            settings(arm, Path(scratch)), log_dir=logs, placement=AlwaysElsewhere(fetch=True)
        )
        async with rollout:
            everything = rollout.read_prompts(rollout.config.rollout.prompts or "")
            before, longest = resident(), 0
            async for group in rollout.run(everything[:prompts]):
                longest = max(longest, *(len(sample.response_ids) for sample in group.samples))
            after, report = resident(), rollout.report()
        text = "".join(path.read_text(errors="replace") for path in logs.glob("**/*.log"))
        hosts = {(int(tokens), float(gb)) for tokens, gb in ALLOCATED.findall(text)}
    keys = ("migrations", "recomputed_tokens", "unstored_chunks", "retractions", "wall_s")
    return {
        **arm._asdict(),
        "host_tokens": [tokens for tokens, _ in hosts],
        "host_gb": [gb for _, gb in hosts],
        "resident_mb": [round(size / 1e6) for size in after],
        "grown_mb": [round((now - then) / 1e6) for now, then in zip(after, before, strict=True)],
        "longest": longest,
        **{key: report.get(key) for key in keys},
    }


def main() -> None:
    """Prints a line per arm, and one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    rows = []
    for arm in ARMS:
        rows.append(asyncio.run(measure(arm, options.prompts)))
        if not options.json:
            print(rows[-1], flush=True)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
