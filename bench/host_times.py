"""Measures what the host of a GPU engine does per decoding step, on a CPU that emulates its loop.

`python -m bench.host_times --json` starts a drafting engine with SGLang's overlapped event loop
(tests/emulation), decodes one large batch of the reasoning model, and prints microseconds of the
scheduler's thread per step, by part. Forward passes, sampling and launches are not among them.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seer_sgl.config import FlagValue
from tests.emulation.generate import facts, generate
from tests.emulation.server import DRAFTING, EXACT, Settings, emulated

PROMPT = list(range(5, 21))
NATIVE: Mapping[str, FlagValue] = {
    "attention-backend": "torch_native",
    "disable-cuda-graph": True,
    "max-total-tokens": 65536,
}


def measure(batch: int, tokens: int, logs: Path) -> dict[str, Any]:
    """Returns the steps that had a full batch, their drafts' widths, and microseconds by part."""
    flags = {**DRAFTING, **EXACT, **NATIVE, "max-running-requests": batch}
    chosen = Settings(every_width=True, triton=False, timed_batch=batch)
    with emulated(logs, flags, chosen) as url:
        # The first request ends before the others begin; half of these draw what it drew.
        seeds = [7] * (batch // 2) + list(range(8, 9 + batch - batch // 2))
        asyncio.run(generate(url, PROMPT, seeds, tokens, temperature=1.0))
        found = asyncio.run(facts(url))
    emulation = found.emulation
    steps = emulation["timed_steps"]
    return {
        "batch": batch,
        "steps": steps,
        "widths": found.draft["steps"],
        "us": {part: round(1e6 * s / steps) for part, s in emulation["host_s"].items()},
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
