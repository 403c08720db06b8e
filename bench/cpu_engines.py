"""Two engines of one CPU core each that run the reasoner, for measurements on a small machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

REASONER = Path(__file__).parent / "reasoner"
HELD_OUT = REASONER / "prompts" / "held_out.jsonl"
MODEL = {"path": str(REASONER / "model")}


def two_engines(kv_tokens: int, running: int, **flags: object) -> dict[str, Any]:
    """Returns the config of the engines, with so many KV tokens and running requests each.

    `flags`: more of SGLang's, with `_` for `-`.
    """
    sglang = {
        "dtype": "float32",
        "max-total-tokens": kv_tokens,
        "max-running-requests": running,
        "enable-deterministic-inference": True,
        "skip-server-warmup": True,
    }
    sglang |= {name.replace("_", "-"): value for name, value in flags.items()}
    return {"model": MODEL, "engines": {"count": 2, "cores": "auto", "sglang": sglang}}


async def flush(urls: Iterable[str]) -> None:
    """Empties the engines' own caches, so that every rollout begins with the same state."""
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.post(f"{url}/flush_cache") as reply:
                reply.raise_for_status()
