"""Calls of `/generate` that are timed together, on all servers at once."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np

from seer_sgl.errors import EngineUnavailable

TOKENS = (3, 64)  # range of the inputs' token ids: every model has them

Inputs = list[list[list[int]]]  # token ids by engine and row
Body = dict[str, Any]


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
    session: aiohttp.ClientSession, urls: Sequence[str], bodies: Sequence[Sequence[Body]]
) -> float:
    """Returns the wall time of all calls at once. `bodies[i]` go to the engine at `urls[i]`.

    Raises EngineUnavailable if a server does not answer.
    """
    began = time.perf_counter()
    await asyncio.gather(
        *(
            _generate(session, url, each)
            for url, calls in zip(urls, bodies, strict=True)
            for each in calls
        )
    )
    return time.perf_counter() - began


async def _generate(session: aiohttp.ClientSession, url: str, content: Body) -> None:
    try:
        async with session.post(f"{url}/generate", json=content) as reply:
            reply.raise_for_status()
            await reply.read()
    except (aiohttp.ClientError, OSError) as error:
        raise EngineUnavailable(f"{url}: while measuring step times: {error}") from error
