"""Replies of OpenAI's endpoints, of an engine and of a rollout server, made comparable."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from tests.server.helpers import Served
from tests.support.bodies import events_in

Json = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CLOSE = {"Connection": "close"}  # an engine closes an idle connection after five seconds
TEXT = "<bos> 4 6 2 , 3 7 ?"
MESSAGES: Any = [{"role": "user", "content": "gcd 4 6 2 , 3 7 ?"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def both(
    it: Served, engine_url: str, path: str, body: Json, status: int = 200
) -> tuple[Any, Any]:
    """Returns SGLang's reply and ours, without names, times and our own fields."""
    replies = []
    for url in (engine_url, it.url):
        async with it.session.post(url + path, json=body, headers=CLOSE) as reply:
            assert reply.status == status, await reply.text()
            replies.append(plain(await reply.json()))
    return about(replies[0]), replies[1]


async def both_streams(it: Served, engine_url: str, path: str, body: Json) -> tuple[Any, Any]:
    """Returns the contents of SGLang's stream and of ours, however they are cut into events."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**body, "stream": True, "stream_options": options}
    theirs, ours = [
        plain(merged(await events(it.session, url + path, body))) for url in (engine_url, it.url)
    ]
    return about(theirs), ours


async def events(session: aiohttp.ClientSession, url: str, body: Json) -> list[Json]:
    """Returns the events of a stream."""
    async with session.post(url, json=body, headers=CLOSE) as reply:
        assert reply.status == 200, await reply.text()
        return events_in(await reply.text())


def merged(stream: list[Json]) -> Json:
    """Returns what a stream has said of each choice, its last event, and the fields of events."""
    contents: Json = {"last": stream[-1], "fields": {}}
    for event in stream[:-1]:
        (choice,) = event["choices"]
        delta = choice.get("delta", {})
        kind = "role" if delta.get("role") else "text"
        if "delta" in choice and not delta.keys() & {"role", "content"}:
            kind = "end"
        contents["fields"][kind] = sorted({*event, *choice, *delta} - {"usage"})
        said = contents.setdefault(f"choice {choice['index']}", {"text": "", "logprobs": []})
        said["text"] += choice.get("text", delta.get("content") or "")
        said["logprobs"] += token_logprobs(choice["logprobs"] or {})
        for name in ("token_ids", "prompt_token_ids"):
            said[name] = said.get(name, []) + choice.get(name, [])
        for name in ("finish_reason", "matched_stop"):
            said[name] = choice[name]
    return contents


def token_logprobs(logprobs: Json) -> list[Any]:
    """Returns the log probabilities of an event, of either endpoint."""
    if "content" in logprobs:
        content: list[Any] = logprobs["content"]
        return content
    return list(zip(logprobs.get("tokens", []), logprobs.get("token_logprobs", []), strict=True))


OWN = ("id", "created", "seer")


def plain(value: Any) -> Any:
    """Returns a reply without names, times and our own fields."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if name not in OWN}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def about(value: Any) -> Any:
    """Returns a reply that equals those with nearly the same floats."""
    if isinstance(value, Mapping):
        return {name: about(each) for name, each in value.items()}
    if isinstance(value, list):
        return [about(each) for each in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
