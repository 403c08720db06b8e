"""Measures the step times of real servers: the constants of the simulated engine."""

import asyncio
import statistics
import time
from collections.abc import Sequence

import aiohttp
import numpy as np

from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineUnavailable
from seer_sgl.sim.config import EngineConfig

BATCHES = (1, 2, 4, 8, 16, 64)
CONTEXTS = (16, 500, 1500, 3000)
PREFILLS = (64, 1024, 4096)  # tokens
STEPS = 96  # decode steps per measurement
REPEATS = 3  # per measurement; the median counts
LEAST_S = 1e-4  # lower bound of a measured decode step, against noise
TOKENS = (3, 64)  # range of the inputs' token ids: every model has them


async def measured_engine(
    infos: Sequence[EngineInfo], kv_bytes: float, api_key: str | None = None
) -> EngineConfig:
    """Returns the step times of plain servers that all run at the same time (`fitted_step`).

    `kv_bytes`: KV bytes per token; only its ratio to the bandwidth matters. Raises
    EngineUnavailable if a server does not answer.
    """
    urls = [info.url for info in infos]
    capacity = min(info.max_total_num_tokens for info in infos)
    room = min(capacity, *(info.max_request_len for info in infos))
    most = min(info.max_running_requests for info in infos)
    async with open_session(api_key) as session:
        warm = _inputs(len(urls), min(most, max(BATCHES)), 64)
        await _seconds(session, urls, warm, 32)
        steps = [
            (batch, batch * (context + STEPS / 2), await _step_s(session, urls, batch, context))
            for batch, context in _points(most, capacity, room)
        ]
        prefills = [tokens for tokens in PREFILLS if tokens < room]
        times = [await _prefill_s(session, urls, tokens) for tokens in prefills]
    overhead, row, kv = fitted_step(steps)
    slope = np.polyfit(prefills, times, 1)[0]
    return EngineConfig(
        count=len(urls),
        kv_tokens=capacity,
        max_running_requests=infos[0].max_running_requests,
        weights_gb=1e-6,
        active_params_b=1e-9,
        kv_bytes_per_token=kv_bytes,
        bandwidth_gb_s=kv_bytes / max(kv, 1e-12) / 1e9,
        overhead_ms=max(0.01, overhead * 1e3),
        row_overhead_us=max(0.0, row) * 1e6,
        prefill_tok_s=1 / max(float(slope), 1e-6),
    )


def fitted_step(steps: Sequence[tuple[int, float, float]]) -> tuple[float, float, float]:
    """Returns the time of a decode step in seconds: overhead, time per row, time per KV token.

    `steps`: (rows, KV tokens of all rows, seconds) each. The fit minimises the squared relative
    errors, so that the short steps of small batches, which form a rollout's tail, count equally.
    """
    seconds = np.array([s for _, _, s in steps])
    terms = np.array([(1.0, rows, tokens) for rows, tokens, _ in steps])
    (overhead, row, kv), *_ = np.linalg.lstsq(
        terms / seconds[:, None], np.ones(len(steps)), rcond=None
    )
    return float(overhead), float(row), float(kv)


def draft_overhead_us(forward_ms: Sequence[Sequence[float]]) -> float:
    """Returns the time in microseconds that a draft to verify adds to a step. `forward_ms`: rows
    [batch, width, ms], measured by a drafting server (plugin/speculation/profile.py)."""
    rows = [(1.0, batch, batch * (width - 1)) for batch, width, _ in forward_ms]
    times = [ms for _, _, ms in forward_ms]
    (_, _, draft), *_ = np.linalg.lstsq(np.array(rows), np.array(times), rcond=None)
    return max(0.0, float(draft)) * 1e3


def _points(most: int, capacity: int, room: int) -> list[tuple[int, int]]:
    """Returns the (batch, context) pairs to measure: the pairs that fit into a server."""
    return [
        (batch, context)
        for batch in BATCHES
        for context in CONTEXTS
        if batch <= most
        and context + STEPS + 1 <= room
        and batch * (context + STEPS + 1) <= capacity
    ]


async def _step_s(
    session: aiohttp.ClientSession, urls: Sequence[str], batch: int, context: int
) -> float:
    """Returns the time of a decode step, from the time of STEPS more tokens. The inputs are cached
    first, so that the difference excludes the noise of a long prefill."""
    inputs = _inputs(len(urls), batch, context)
    await _seconds(session, urls, inputs, 1)
    times = []
    for _ in range(REPEATS):
        first = await _seconds(session, urls, inputs, 1)
        times.append((await _seconds(session, urls, inputs, 1 + STEPS) - first) / STEPS)
    return max(LEAST_S, statistics.median(times))


async def _prefill_s(session: aiohttp.ClientSession, urls: Sequence[str], tokens: int) -> float:
    return statistics.median(
        [await _seconds(session, urls, _inputs(len(urls), 1, tokens), 1) for _ in range(REPEATS)]
    )


def _inputs(engines: int, batch: int, context: int) -> list[list[list[int]]]:
    """Returns `batch` random inputs per engine, which no cache holds."""
    random = np.random.default_rng(time.monotonic_ns())
    inputs: list[list[list[int]]] = random.integers(*TOKENS, (engines, batch, context)).tolist()
    return inputs


async def _seconds(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    inputs: Sequence[Sequence[Sequence[int]]],
    tokens: int,
) -> float:
    """Returns the wall time of all calls at once. `inputs[i]` go to the engine at `urls[i]`."""
    began = time.perf_counter()
    await asyncio.gather(
        *(
            _generate(session, url, ids, tokens)
            for url, calls in zip(urls, inputs, strict=True)
            for ids in calls
        )
    )
    return time.perf_counter() - began


async def _generate(
    session: aiohttp.ClientSession, url: str, ids: Sequence[int], tokens: int
) -> None:
    body = {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": 1},
        "return_logprob": True,
    }
    try:
        async with session.post(f"{url}/generate", json=body) as reply:
            reply.raise_for_status()
            await reply.read()
    except (aiohttp.ClientError, OSError) as error:
        raise EngineUnavailable(f"{url}: while measuring step times: {error}") from error
