"""Responses that take a while on the engines of `two`."""

import asyncio
from typing import Any

from tests.server.helpers import Served

PROMPT = [5, 6, 7, 8]
SEED = 1 << 20
LIMIT = 400  # tokens


def generating(
    it: Served, seed: int = SEED, limit: int = LIMIT, **more: Any
) -> "asyncio.Task[Any]":
    """Asks for a response of so many tokens to PROMPT."""
    params = {"max_new_tokens": limit, "sampling_seed": seed}
    return asyncio.create_task(it.generate(input_ids=PROMPT, sampling_params=params, **more))
