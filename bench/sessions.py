"""Measures which tokens of conversations an engine still has while single prompts fill its KV.

`python -m bench.sessions [--json]` starts one engine without and one with SGLang's
`--enable-session-radix-cache`, and holds conversations on it with 0 to 3 single prompts between two
turns. A figure is the share of the later turns' prompts that the engine had cached.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import aiohttp

from seer_sgl import Rollout, load_ready

KV_TOKENS = 8192
TALKS, TURNS = 8, 5
BEGIN, MORE, ANSWER = 256, 96, 32  # tokens of a first turn, of what is added, of a response
SINGLE = 512  # tokens of a single prompt
BETWEEN = (0, 1, 2, 3)
WORDS = range(5, 30)  # token ids


def config(kept: bool) -> Any:
    """Returns the config of one engine without pool and drafts. kept: with sessions."""
    flags = {"max-total-tokens": KV_TOKENS, "enable-session-radix-cache": kept}
    return load_ready(
        "cpu-seer",
        (
            *("engines.count=1", "kv_pool.backend=none", "draft.scope=none"),
            *(f"engines.sglang.{name}={json.dumps(value)}" for name, value in flags.items()),
        ),
    )


async def generate(
    http: aiohttp.ClientSession, url: str, ids: Sequence[int], tokens: int, **fields: str
) -> dict[str, Any]:
    """Returns an engine's reply to a prompt."""
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    body = {"input_ids": list(ids), "sampling_params": sampling, **fields}
    async with http.post(f"{url}/generate", json=body) as reply:
        reply.raise_for_status()
        result: dict[str, Any] = await reply.json()
        return result


async def converse(url: str, between: int) -> tuple[list[list[int]], int, int]:
    """Returns the tokens of all conversations, the cached tokens of the later turns, and all tokens
    of their prompts."""
    rng, cached, total = random.Random(7), 0, 0
    talks = [rng.choices(WORDS, k=BEGIN) for _ in range(TALKS)]
    names = [f"{between}-{i}" for i in range(TALKS)]
    async with aiohttp.ClientSession() as http:
        for turn in range(TURNS):
            for said, name in zip(talks, names, strict=True):
                reply = await generate(http, url, said, ANSWER, session_id=name)
                if turn:
                    cached += reply["meta_info"]["cached_tokens"]
                    total += len(said)
                said += [*reply["output_ids"], *rng.choices(WORDS, k=MORE)]
                for _ in range(between):
                    await generate(http, url, rng.choices(WORDS, k=SINGLE), 8)
        for name in names:
            await http.post(f"{url}/close_session", json={"session_id": name})
    return talks, cached, total


async def measured() -> list[dict[str, Any]]:
    """Returns the figures of both arms."""
    figures = []
    for kept in (False, True):
        async with Rollout(config(kept)) as rollout:
            for between in BETWEEN:
                _, cached, total = await converse(rollout.engines[0].url, between)
                figures.append(
                    {"sessions": kept, "between": between, "cached": cached, "tokens": total}
                )
    return figures


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    figures = asyncio.run(measured())
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for row in figures:
        arm = "with sessions" if row["sessions"] else "without"
        share = row["cached"] / row["tokens"]
        print(f"{arm}, {row['between']} prompts between two turns: {share:.0%} cached")


if __name__ == "__main__":
    main()
