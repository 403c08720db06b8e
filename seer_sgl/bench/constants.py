"""How long the steps of real servers take: the constants of the simulated engine."""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import numpy as np

from seer_sgl.engine.client import open_session
from seer_sgl.errors import EngineUnavailable
from seer_sgl.sim.config import EngineConfig
from seer_sgl.types import EngineInfo

BATCHES = (1, 4, 16)
CONTEXTS = (16, 1500)
PREFILLS = (64, 1024, 4096)  # tokens
STEPS = 192  # decode steps of a measurement
TOKENS = (3, 64)  # ids of the inputs: every model has them


async def measured_engine(
    infos: Sequence[EngineInfo], kv_bytes: float, api_key: str | None = None
) -> EngineConfig:
    """Step times of plain servers, all of them working at the same time.

    Least squares: a decode step takes overhead + rows x row overhead + KV tokens x seconds a token.
    kv_bytes: KV of a token; only its ratio to the bandwidth matters. Raises EngineUnavailable.
    """
    urls = [info.url for info in infos]
    capacity = min(info.max_total_num_tokens for info in infos)
    room = min(capacity, *(info.max_request_len for info in infos))
    batches = [b for b in BATCHES if b <= min(info.max_running_requests for info in infos)]
    async with open_session(api_key) as session:
        await _seconds(session, urls, max(batches), 64, 32)  # warm
        rows, steps = [], []
        for batch in batches:
            for context in CONTEXTS:
                if batch * (context + STEPS + 1) > capacity or context + STEPS + 1 > room:
                    continue
                first = await _seconds(session, urls, batch, context, 1)
                whole = await _seconds(session, urls, batch, context, 1 + STEPS)
                rows.append((1.0, batch, batch * (context + STEPS / 2)))
                steps.append((whole - first) / STEPS)
        (overhead, row, kv), *_ = np.linalg.lstsq(np.array(rows), np.array(steps), rcond=None)
        prefills = [tokens for tokens in PREFILLS if tokens < room]
        times = [await _seconds(session, urls, 1, tokens, 1) for tokens in prefills]
        slope = np.polyfit(prefills, times, 1)[0]
    return EngineConfig(
        count=len(urls),
        kv_tokens=capacity,
        max_running_requests=infos[0].max_running_requests,
        weights_gb=1e-6,
        active_params_b=1e-9,
        kv_bytes_per_token=kv_bytes,
        bandwidth_gb_s=kv_bytes / max(float(kv), 1e-12) / 1e9,
        overhead_ms=max(0.01, float(overhead) * 1e3),
        row_overhead_us=max(0.0, float(row)) * 1e6,
        prefill_tok_s=1 / max(float(slope), 1e-6),
    )


def draft_overhead_us(forward_ms: Sequence[Sequence[float]]) -> float:
    """What a draft to verify adds to a step. forward_ms: [batch, width, ms] as a drafting server
    has measured them (plugin/speculation/measure.py)."""
    rows = [(1.0, batch, batch * (width - 1)) for batch, width, _ in forward_ms]
    times = [ms for _, _, ms in forward_ms]
    (_, _, draft), *_ = np.linalg.lstsq(np.array(rows), np.array(times), rcond=None)
    return max(0.0, float(draft)) * 1e3


async def _seconds(
    session: aiohttp.ClientSession, urls: Sequence[str], batch: int, context: int, tokens: int
) -> float:
    """Wall time of `batch` calls on each engine at once, each with an input nobody has cached."""
    random = np.random.default_rng(time.monotonic_ns())
    inputs = random.integers(*TOKENS, (len(urls), batch, context)).tolist()
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
        raise EngineUnavailable(f"{url}: while measuring step times: {error}") from None
