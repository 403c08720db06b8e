"""Measures what a verification adds to a plain step, on real servers that draft.

Every response is generated several times, with the same seed and as samples of one prompt. All but
the first draft what the first one has written. So nearly all drafts are accepted, and nearly all
steps verify as many as a server verifies at once.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import aiohttp
import msgspec

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.session import open_session
from seer_sgl.errors import EngineUnavailable
from seer_sgl.sampling import ORIGIN
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.steps import StepTime
from seer_sgl.what_if.constants import fits, fitted
from seer_sgl.what_if.timed_calls import Body, Inputs, body, random_inputs, seconds

WRITTEN = 448  # tokens
CASES = (  # sequences, and tokens of their prompts: contexts of the benchmark's responses
    *((batch, 256) for batch in (1, 2, 4, 8, 10, 16)),
    *((batch, 1500) for batch in (1, 2, 4)),
    *((batch, 3000) for batch in (1, 2)),
)
REPEATS = 7  # the median counts
RESERVED = 64  # KV tokens that a server may keep for the drafts of a request


class Verified(msgspec.Struct, frozen=True):
    """The steps of `batch` sequences: KV tokens and drafts per sequence, and seconds; means over
    the steps."""

    batch: int
    context: float
    drafts: float
    step_s: float


class Verification(msgspec.Struct, frozen=True):
    """What a verification adds to a plain step: milliseconds, microseconds per draft, and
    nanoseconds per draft and KV token that it attends to."""

    step_ms: float
    draft_us: float
    kv_ns: float


class _Work(NamedTuple):
    """Prompts whose first samples are written: token ids by engine and row, a name of their groups,
    sequences per engine, and tokens of each prompt."""

    inputs: Inputs
    name: str
    batch: int
    prompt: int


async def measured_verification(
    engines: Sequence[HttpEngine], plain: EngineConfig, api_key: str | None = None
) -> Verification:
    """Returns the cost on servers that all run at the same time. `plain`: of steps without drafts.

    Raises EngineUnavailable if a server does not answer or verifies nothing.
    """
    infos = [engine.info for engine in engines]
    async with open_session(api_key) as session:
        works = [
            await _written(session, engines, batch, prompt)
            for batch, prompt in CASES
            if fits(infos, batch, prompt + WRITTEN + RESERVED)
        ]
        measured = [  # in turn: a shared machine is not equally fast all the time
            [await _verified(session, engines, work, sample) for work in works]
            for sample in range(1, 1 + REPEATS)
        ]
    rows = [
        sorted(some, key=attrgetter("step_s"))[REPEATS // 2] for some in zip(*measured, strict=True)
    ]
    drafted = [row for row in rows if row.drafts >= 1]  # the others do not pay, so they are plain
    if len(drafted) < 2:
        raise EngineUnavailable(f"{infos[0].url}: verifies no drafts of equal responses")
    return fitted_verification(drafted, plain)


def fitted_verification(rows: Sequence[Verified], plain: EngineConfig) -> Verification:
    """Returns what the steps take beyond plain ones of the same batch and context.

    From one context alone, what attention takes counts as a part of each draft.
    """
    step = StepTime(plain)
    plain_s = [step.fixed(row.batch) + row.batch * row.context * step.attention() for row in rows]
    terms = 3 if len({row.context for row in rows}) > 1 else 2
    drafts = [(row.batch * row.drafts, row.context) for row in rows]
    fixed, draft, *kv = fitted(
        [(1.0, count, count * context)[:terms] for count, context in drafts],
        [row.step_s - alone for row, alone in zip(rows, plain_s, strict=True)],
        plain_s,
    )
    return Verification(
        step_ms=fixed * 1e3,
        draft_us=draft * 1e6,
        kv_ns=sum(kv) * 1e9,
    )


async def _written(
    session: aiohttp.ClientSession, engines: Sequence[HttpEngine], batch: int, prompt: int
) -> _Work:
    work = _Work(random_inputs(len(engines), batch, prompt), uuid.uuid4().hex, batch, prompt)
    urls = [engine.info.url for engine in engines]
    await seconds(session, urls, _samples(work, 0, 1 + WRITTEN))
    return work


async def _verified(
    session: aiohttp.ClientSession, engines: Sequence[HttpEngine], work: _Work, sample: int
) -> Verified:
    urls = [engine.info.url for engine in engines]
    await seconds(session, urls, _samples(work, sample, 1))  # the prompts are cached
    begin = await seconds(session, urls, _samples(work, sample, 1))
    before = await _steps(engines)
    whole = await seconds(session, urls, _samples(work, sample, 1 + WRITTEN))
    widths = await _steps(engines) - before
    steps = widths.total()
    drafts = sum((width - 1) * count for width, count in widths.items()) / max(1, steps)
    step_s = (whole - begin) * len(urls) / max(1, steps)
    return Verified(work.batch, work.prompt + WRITTEN / 2, drafts, step_s)


async def _steps(engines: Sequence[HttpEngine]) -> Counter[int]:
    """Returns the decode steps of all engines so far, by width."""
    steps: Counter[int] = Counter()
    for engine in engines:
        counters = await engine.drafting()
        for width, count in (counters or {"steps": {}})["steps"].items():
            steps[int(width)] += count
    return steps


def _samples(work: _Work, sample: int, tokens: int) -> list[list[Body]]:
    """Returns the calls of one sample of every prompt; the seeds of all samples are equal."""
    return [
        [
            body(
                ids,
                tokens,
                seed=row,
                custom_params={
                    ORIGIN: {
                        "group": f"{work.name}-{place}-{row}",
                        "sample": sample,
                        "prompt_len": len(ids),
                    }
                },
            )
            for row, ids in enumerate(rows)
        ]
        for place, rows in enumerate(work.inputs)
    ]
