"""A rollout through the server, with dynamic filtering as in slime, veRL and OpenRLHF.

    seer-sgl serve --config CONFIG --port 30000
    python -m examples.rollout_client http://127.0.0.1:30000 --prompts P --target 4

Rolls all prompts out and keeps the first groups whose rewards differ, until there are enough. The
server aborts the rest. P is a JSONL file of prompts. The reward here is toy: an even length.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp


def reward(sample: dict[str, Any]) -> float:
    """Returns the reward of a sample."""
    return float(sample["response_length"] % 2 == 0)


async def main(url: str, groups: list[Any], target: int) -> None:
    """Accepts groups whose rewards differ and prints them. Exits if the server refuses them."""
    body = {"groups": groups, "target_groups": target, "dynamic_filtering": True, "seed": 1}
    async with (
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.post("/rollout", json=body, read_bufsize=1 << 26) as stream,
    ):
        if stream.status != 200:
            sys.exit(f"{url} answers {stream.status}: {await stream.text()}")
        async for line in stream.content:
            event = json.loads(line)
            if event["event"] == "group" and "error" in event:
                print(f"{event['group_id']}: given up, {event['error']['message']}", flush=True)
            elif event["event"] == "group":
                rewards = {reward(sample) for sample in event["samples"]}
                verdict = "accept" if len(rewards) > 1 else "reject"
                name = {"group_id": event["group_id"]}
                rollout = stream.headers["X-Seer-Rollout-Id"]
                async with session.post(f"/rollout/{rollout}/{verdict}", json=name) as reply:
                    print(f"{event['group_id']}: {verdict}, {reply.status}", flush=True)
    print(f"{event['state']}: {event['groups']} groups, {event['generated_tokens']} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", type=int, default=4)
    arguments = parser.parse_args()
    lines = arguments.prompts.read_text().splitlines()
    asyncio.run(main(arguments.url, [*map(json.loads, lines)], arguments.target))
