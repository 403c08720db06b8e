"""Measures what a verification adds to a plain step, on real servers that draft.

All servers run at the same time what a rollout runs: samples of one prompt, each with a seed of its
own, that draft what the others have written so far.
"""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.session import open_session
from seer_sgl.errors import EngineUnavailable
from seer_sgl.sampling import ORIGIN
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.steps import StepTime
from seer_sgl.what_if.constants import fits, fitted
from seer_sgl.what_if.timed_calls import Body, body, seconds

BATCHES = (2, 4, 8, 16)
WRITTEN = 320  # tokens of a response: as long as most of the benchmark's
REPEATS = 3  # with other prompts; their sum counts
RESERVED = 64  # KV tokens that a server may keep for the drafts of a request


class Verified(msgspec.Struct, frozen=True):
    """The steps of `batch` sequences: their mean context in tokens, drafts per sequence, and
    seconds, means over the steps."""

    batch: int
    context: float
    drafts: float
    step_s: float


class Verification(msgspec.Struct, frozen=True):
    """What a verification adds to a plain step: milliseconds, and microseconds per draft. `drafts`:
    how many a sequence verifies, in the largest batch."""

    step_ms: float
    draft_us: float
    drafts: float


class Work(msgspec.Struct, frozen=True):
    """What the servers generate: samples of these prompts (token ids), with these sampling
    parameters."""

    prompts: Sequence[Sequence[int]]
    sampling: Mapping[str, Any]


async def measured_verification(
    engines: Sequence[HttpEngine], plain: EngineConfig, work: Work, api_key: str | None = None
) -> Verification:
    """Returns the cost on servers that all run at the same time. `plain`: of steps without drafts.

    Raises EngineUnavailable if a server does not answer or verifies nothing.
    """
    infos = [engine.info for engine in engines]
    longest = max(map(len, work.prompts)) + WRITTEN + RESERVED
    async with open_session(api_key) as session:
        rows = [
            await _verified(session, engines, work, batch)
            for batch in BATCHES
            if fits(infos, batch, longest)
        ]
    drafted = [row for row in rows if row.drafts >= 1]  # the others do not pay, so they are plain
    if len(drafted) < 2:
        raise EngineUnavailable(f"{infos[0].url}: verifies no drafts of siblings")
    return fitted_verification(drafted, plain)


def fitted_verification(rows: Sequence[Verified], plain: EngineConfig) -> Verification:
    """Returns what the steps take beyond plain ones of the same batch and context."""
    step = StepTime(plain)
    plain_s = [step.fixed(row.batch) + row.batch * row.context * step.attention() for row in rows]
    fixed, draft = fitted(
        [(1.0, row.batch * row.drafts) for row in rows],
        [row.step_s - alone for row, alone in zip(rows, plain_s, strict=True)],
        plain_s,
    )
    return Verification(max(0.0, fixed) * 1e3, max(0.0, draft) * 1e6, rows[-1].drafts)


async def _verified(
    session: aiohttp.ClientSession, engines: Sequence[HttpEngine], work: Work, batch: int
) -> Verified:
    urls = [engine.info.url for engine in engines]
    widths: Counter[int] = Counter()
    took, context = 0.0, 0.0
    for repeat in range(REPEATS):
        prompts = [
            work.prompts[(repeat * len(urls) + place) % len(work.prompts)]
            for place in range(len(urls))
        ]
        context += sum(map(len, prompts)) / len(urls) / REPEATS + WRITTEN / 2 / REPEATS
        await seconds(session, urls, _samples(prompts, work, batch, 1))  # the prompts are cached
        took -= await seconds(session, urls, _samples(prompts, work, batch, 1))
        before = await _steps(engines)
        took += await seconds(session, urls, _samples(prompts, work, batch, 1 + WRITTEN))
        widths += await _steps(engines) - before
    steps = max(1, widths.total())
    drafts = sum((width - 1) * count for width, count in widths.items()) / steps
    return Verified(batch, context, drafts, took * len(urls) / steps)


async def _steps(engines: Sequence[HttpEngine]) -> Counter[int]:
    """Returns the decode steps of all engines so far, by width."""
    steps: Counter[int] = Counter()
    for engine in engines:
        counters = await engine.drafting()
        for width, count in (counters or {"steps": {}})["steps"].items():
            steps[int(width)] += count
    return steps


def _samples(
    prompts: Sequence[Sequence[int]], work: Work, batch: int, tokens: int
) -> list[list[Body]]:
    """Returns the calls of `batch` samples of a prompt per server, as a new group each."""
    name = uuid.uuid4().hex
    return [
        [
            body(
                ids,
                tokens,
                seed=row,
                custom_params={
                    ORIGIN: {"group": f"{name}-{place}", "sample": row, "prompt_len": len(ids)}
                },
                **work.sampling,
            )
            for row in range(batch)
        ]
        for place, ids in enumerate(prompts)
    ]
