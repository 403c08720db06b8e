"""Bodies of `/generate` and its streamed answers."""

import json
from typing import Any

from tests.server.helpers import Served

PROMPT = [5, 6, 7, 8]
LIMIT = 40


def body(seed: int, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": LIMIT, "sampling_seed": seed, **more.pop("params", {})}
    return {"input_ids": PROMPT, "sampling_params": params, **more}


async def events(it: Served, path: str = "/generate", **fields: Any) -> list[dict[str, Any]]:
    async with it.session.post(f"{it.url}{path}", json={**fields, "stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        return events_in(await reply.text())


def events_in(text: str) -> list[dict[str, Any]]:
    """Returns the events of a stream that has ended."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""], f"a stream without an end: {text[-200:]}"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
