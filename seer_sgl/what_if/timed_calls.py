"""Calls of `/generate` that are timed together, on all servers at once."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import numpy as np

from seer_sgl.engine import wire
from seer_sgl.engine.server_calls import GENERATE, ServerCalls
from seer_sgl.errors import BadReply

LIMIT_S = 120.0  # of a call: a server that answers no later is unavailable
TOKENS = (3, 64)  # range of the inputs' token ids: every model has them

Inputs = list[list[list[int]]]  # token ids by engine and row
Body = dict[str, Any]


class TimedReply(msgspec.Struct):
    """What is read of a reply."""

    output_ids: list[int]


def random_inputs(engines: int, batch: int, context: int) -> Inputs:
    """Returns `batch` random inputs per engine, which no cache holds."""
    random = np.random.default_rng(time.monotonic_ns())
    inputs: Inputs = random.integers(*TOKENS, (engines, batch, context)).tolist()
    return inputs


def body(ids: Sequence[int], tokens: int, seed: int = 1, **sampling: Any) -> Body:
    """Returns the body of a call that generates exactly so many tokens."""
    return {
        "input_ids": list(ids),
        "sampling_params": {
            "max_new_tokens": tokens,
            "ignore_eos": True,
            "sampling_seed": seed,
            **sampling,
        },
        "return_logprob": True,
    }


async def seconds(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    bodies: Sequence[Sequence[Body]],
    limit_s: float = LIMIT_S,
) -> float:
    """Returns the time until a server has answered its calls, mean of all servers. `bodies[i]` go
    to the server at `urls[i]`, all at once. The mean, because servers of a rollout do not wait for
    the slowest of them.

    Raises EngineUnavailable if a server does not answer within `limit_s` seconds, BadReply if it
    generates another number of tokens, and RequestRejected if SGLang refuses a call.
    """
    began = time.perf_counter()
    ended = await asyncio.gather(
        *(_answered(session, url, some, limit_s) for url, some in zip(urls, bodies, strict=True))
    )
    for url, some, (replies, _) in zip(urls, bodies, ended, strict=True):
        for body, reply in zip(some, replies, strict=True):
            _check(url, body, reply)
    return statistics.mean(at for _, at in ended) - began


async def _answered(
    session: aiohttp.ClientSession, url: str, bodies: Sequence[Body], limit_s: float
) -> tuple[list[bytes], float]:
    replies = await asyncio.gather(*(_generate(session, url, body, limit_s) for body in bodies))
    return replies, time.perf_counter()


async def _generate(
    session: aiohttp.ClientSession, url: str, content: Body, limit_s: float
) -> bytes:
    server = ServerCalls(session, url, f"{url}: while measuring step times")
    return await server.call("POST", GENERATE, aiohttp.JsonPayload(content), within_s=limit_s)


def _check(url: str, content: Body, reply: bytes) -> None:
    try:
        count = len(wire.decode(reply, TimedReply).output_ids)
    except wire.Unreadable as error:
        raise BadReply(f"{url}: while measuring step times: {error}") from error
    wanted = content["sampling_params"]["max_new_tokens"]
    if count != wanted:
        raise BadReply(f"{url}: while measuring step times: {count} tokens, not {wanted}")
