"""What an engine draws for a request, and the steps that it takes."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from tests.e2e.undivided import generate


class Drawn(NamedTuple):
    """The result of a request."""

    tokens: list[int]
    logprobs: list[float]
    finish: dict[str, Any]
    verifications: int
    retractions: int


def clients() -> aiohttp.ClientSession:
    """Returns a session for many requests at once, each with a connection of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def draw(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Drawn:
    """Returns what an engine draws for a body of /generate."""
    return _drawn((await generate(session, url, body))["meta_info"])


async def draw_all(
    session: aiohttp.ClientSession, url: str, bodies: Sequence[dict[str, Any]]
) -> list[Drawn]:
    """Returns what an engine draws for bodies of /generate that it receives in one call."""
    each = {key: [body[key] for body in bodies] for key in ("input_ids", "sampling_params")}
    replies: Any = await generate(session, url, {**each, "return_logprob": True})
    return [_drawn(reply["meta_info"]) for reply in replies]


def _drawn(meta: dict[str, Any]) -> Drawn:
    entries = meta["output_token_logprobs"]
    return Drawn(
        [token for _, token, _ in entries],
        [logprob for logprob, _, _ in entries],
        meta["finish_reason"],
        meta.get("spec_verify_ct", 0),
        meta["num_retractions"],
    )


async def control(session: aiohttp.ClientSession, url: str, path: str, **fields: Any) -> None:
    """Makes a call to an engine that must succeed."""
    async with session.post(f"{url}{path}", json=fields) as reply:
        assert reply.status == 200


async def continue_all(session: aiohttp.ClientSession, urls: Sequence[str]) -> None:
    """Continues engines that were paused: all of them, also if the call to one fails."""
    calls = (control(session, url, "/continue_generation") for url in urls)
    for error in await asyncio.gather(*calls, return_exceptions=True):
        if error is not None:
            raise error


async def running(session: aiohttp.ClientSession, url: str) -> int:
    """Returns the requests in the batch of an engine; each of them has a token."""
    async with session.get(f"{url}/v1/loads") as reply:
        return int((await reply.json())["loads"][0]["num_running_reqs"])


async def steps(session: aiohttp.ClientSession, url: str) -> int:
    """Returns the forward passes of an engine since its start."""
    async with session.get(f"{url}/server_info") as reply:
        state = (await reply.json())["internal_states"][0]
    return int(state["seer_sgl"]["work"]["forward_steps"])
