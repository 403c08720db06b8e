"""Rollout servers on real engines, and requests to them."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from seer_sgl.rollout.rollout import Rollout
from tests.e2e.conftest import external
from tests.server.helpers import Served, served_config

LIMIT = 900  # tokens of a request


def serving(urls: list[str], longest: int = 4000) -> AbstractAsyncContextManager[Served]:
    """Runs a server on engines. `longest`: the most tokens of a response."""
    config = {**external(urls, sampling={"max_response_len": longest}), "server": {"port": 0}}
    return served_config(Rollout(config, gives_up=False))


def body(ids: Sequence[int], seed: int, limit: int = LIMIT) -> dict[str, Any]:
    """Returns a body of /generate for exactly `limit` tokens."""
    params = {
        "max_new_tokens": limit,
        "temperature": 1.0,
        "sampling_seed": seed,
        "ignore_eos": True,
    }
    return {"input_ids": list(ids), "sampling_params": params}
