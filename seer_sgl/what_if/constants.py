"""Measures the costs of plain steps on real servers: the constants of the simulated engine."""

import itertools
import statistics
from collections.abc import Sequence

import aiohttp
import msgspec
import numpy as np

from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import EngineConfig

from .timed_calls import Inputs, body, random_inputs, seconds

BATCHES = (1, 2, 4, 8, 16, 64)
CONTEXTS = (16, 500, 1500, 3000)
PREFILLS = (64, 512, 2048)  # tokens; in longer ones attention counts, which the model lacks
STEPS = 96  # decode steps per measurement
REPEATS = 3  # per measurement; the median counts
LEAST_STEPS, LEAST_PREFILLS = 3, 2  # as many as the terms of their fits
LEAST_S = 1e-4  # lower bound of a measured decode step, against noise


class Points(msgspec.Struct, frozen=True):
    """Measured times. `steps`: (batch, KV tokens of all rows, seconds of a decode step) each;
    `begins`: (batch, seconds until so many cached inputs have their first token) each."""

    steps: list[tuple[float, float, float]]
    begins: list[tuple[float, float]]


async def measured_engine(
    infos: Sequence[EngineInfo], kv_bytes: float, api_key: str | None = None
) -> EngineConfig:
    """Returns the costs of plain servers that all run at the same time (`fitted_step`).

    `kv_bytes`: KV bytes per token; only its ratio to the bandwidth matters. Raises
    EngineUnavailable if a server does not answer, and ConfigError if one is too small.
    """
    urls = [info.url for info in infos]
    prefills = [tokens for tokens in PREFILLS if fits(infos, 1, tokens)]
    steps = [step for step in itertools.product(BATCHES, CONTEXTS) if _has_room(infos, *step)]
    contexts = {context for _, context in steps}  # one alone tells no row from its KV
    if len(steps) < LEAST_STEPS or len(contexts) < 2 or len(prefills) < LEAST_PREFILLS:
        least = min(infos, key=lambda info: info.max_total_num_tokens)
        raise ConfigError(
            f"--engine {least.url}: too small to measure: {least.max_total_num_tokens} KV tokens, "
            f"{least.max_running_requests} requests at once, of {least.max_request_len} tokens"
        )
    async with open_session(api_key) as session:
        warm = random_inputs(len(urls), min(8, infos[0].max_running_requests), 64)
        await seconds(session, urls, bodies(warm, 32))
        points = await measured_points(session, infos)
        times = [await _prefill_s(session, urls, tokens) for tokens in prefills]
    overhead, row, kv = fitted_step(points.steps)
    return EngineConfig(
        count=len(urls),
        kv_tokens=min(info.max_total_num_tokens for info in infos),
        max_running_requests=min(info.max_running_requests for info in infos),
        weights_gb=1e-6,
        active_params_b=1e-9,
        attention_mflop=0.0,
        kv_bytes_per_token=kv_bytes,
        bandwidth_gb_s=kv_bytes / max(kv, 1e-12) / 1e9,
        overhead_ms=max(0.01, overhead * 1e3),
        row_overhead_us=row * 1e6,
        draft_overhead_us=0.0,  # verification.py measures the whole of a verification
        chunk_ms=begin_s(points.begins) * 1e3,
        prefill_tok_s=1 / max(1e-6, float(np.polyfit(prefills, times, 1)[0])),
    )


async def measured_points(
    session: aiohttp.ClientSession, infos: Sequence[EngineInfo], contexts: Sequence[int] = CONTEXTS
) -> Points:
    """Returns the times of all batches and contexts that fit into every server.

    Each is measured several times, in turn with the others: a shared machine is not equally fast
    all the time.
    """
    urls, points = [info.url for info in infos], Points([], [])
    cases = [case for case in itertools.product(BATCHES, contexts) if _has_room(infos, *case)]
    measured = [
        [await _begin_and_step_s(session, urls, *case) for case in cases] for _ in range(REPEATS)
    ]
    for (batch, context), times in zip(cases, zip(*measured, strict=True), strict=True):
        begin, step = (statistics.median(some) for some in zip(*times, strict=True))
        points.begins.append((batch, begin))
        points.steps.append((batch, batch * (context + STEPS / 2), max(LEAST_S, step)))
    return points


def _has_room(infos: Sequence[EngineInfo], batch: int, context: int) -> bool:
    return fits(infos, batch, context + STEPS)


def fits(infos: Sequence[EngineInfo], batch: int, tokens: int) -> bool:
    """Returns whether every server can run so many requests of so many tokens at once."""
    return all(
        batch <= info.max_running_requests
        and tokens < info.max_request_len
        and batch * (tokens + 1) <= info.max_total_num_tokens
        for info in infos
    )


def fitted_step(steps: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Returns the time of a decode step in seconds: overhead, time per row, time per KV token."""
    overhead, row, kv = fitted([(1.0, *terms) for *terms, _ in steps], [s for *_, s in steps])
    return overhead, row, kv


def begin_s(begins: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds that each further chunk adds until all have begun."""
    _, more = fitted([(1.0, batch) for batch, _ in begins], [s for _, s in begins])
    return more


def fitted(
    terms: Sequence[Sequence[float]], times: Sequence[float], scale: Sequence[float] | None = None
) -> list[float]:
    """Returns the coefficients of the terms, whose sums are nearest to the times. None is negative:
    a term that would be is left out, and the others are fitted without it.

    The fit minimises squared errors relative to `scale`, which is the times themselves if not
    given, so that the short steps of small batches, which form a rollout's tail, count equally.
    """
    scales = np.array(times if scale is None else scale)
    columns, relative = np.array(terms, float) / scales[:, None], np.array(times) / scales
    coefficients, kept = np.zeros(columns.shape[1]), np.arange(columns.shape[1])
    while kept.size:
        found, *_ = np.linalg.lstsq(columns[:, kept], relative, rcond=None)
        if (found >= 0).all():
            coefficients[kept] = found
            break
        kept = np.delete(kept, (found * columns[:, kept].mean(axis=0)).argmin())
    return [float(one) for one in coefficients]


def bodies(inputs: Inputs, tokens: int) -> list[list[dict[str, object]]]:
    """Returns the bodies of calls that generate so many tokens after each input."""
    return [[body(ids, tokens) for ids in rows] for rows in inputs]


async def _begin_and_step_s(
    session: aiohttp.ClientSession, urls: Sequence[str], batch: int, context: int
) -> tuple[float, float]:
    """Returns the time until all have their first token, and the time of a decode step, from the
    time of STEPS more tokens. The inputs are cached first, so that the difference excludes the
    noise of a long prefill."""
    inputs = random_inputs(len(urls), batch, context)
    await seconds(session, urls, bodies(inputs, 1))
    begin = await seconds(session, urls, bodies(inputs, 1))
    whole = await seconds(session, urls, bodies(inputs, 1 + STEPS))
    return begin, (whole - begin) / STEPS


async def _prefill_s(session: aiohttp.ClientSession, urls: Sequence[str], tokens: int) -> float:
    return statistics.median(
        [
            await seconds(session, urls, bodies(random_inputs(len(urls), 1, tokens), 1))
            for _ in range(REPEATS)
        ]
    )
