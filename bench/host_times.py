"""Measures what the host of a GPU engine does per decoding step, on a CPU that emulates its loop.

`python -m bench.host_times --json` starts a drafting engine with SGLang's overlapped event loop
(tests/emulation), decodes one large batch of the reasoning model, and prints microseconds of the
scheduler's thread per step, by part. Forward passes, sampling and launches are not among them.
On a GPU, what a part costs the host delays the GPU if it lies between the tokens of a step and the
launch of the next one, as drafting does; the rest runs while the GPU computes.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import step_parts
from seer_sgl.config import FlagValue
from tests.emulation.generate import facts, generate
from tests.emulation.server import DRAFTING, EXACT, Settings, emulated

PROMPT = list(range(5, 21))
NATIVE: Mapping[str, FlagValue] = {
    "attention-backend": "torch_native",
    "disable-cuda-graph": True,
    "max-total-tokens": 65536,
}
PARTS = ("drafting", "layout", "mask", "receiving", "next batch", "results")


def measure(batch: int, tokens: int, logs: Path) -> dict[str, Any]:
    """Returns the steps that had a full batch, their drafts' widths, and microseconds by part."""
    flags = {**DRAFTING, **EXACT, **NATIVE, "max-running-requests": batch}
    chosen = Settings(every_width=True, triton=False)
    measures = step_parts.environment(logs / "plugin", batch)
    with emulated(logs, flags, chosen, variables=measures) as url:
        # The first request ends before the others begin; half of these draw what it drew.
        seeds = [7] * (batch // 2) + list(range(8, 9 + batch - batch // 2))
        asyncio.run(generate(url, PROMPT, seeds, tokens, temperature=1.0))
        widths = asyncio.run(facts(url)).draft["steps"]
        found = asyncio.run(step_parts.reported(url))
    steps, kinds = sum(found["steps"].values()), found["seconds"].values()
    seconds = {part: sum(kind.get(part, 0.0) for kind in kinds) for part in PARTS}
    return {
        "batch": batch,
        "steps": steps,
        "widths": widths,
        "us": {part: round(1e6 * s / steps) for part, s in seconds.items()},
    }


def main() -> None:
    """Prints the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64, help="requests that run at once")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per response")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        figures = measure(options.batch, options.tokens, Path(logs))
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in {**figures, **figures.pop("us")}.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
