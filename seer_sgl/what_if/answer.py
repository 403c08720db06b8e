"""Everything that a what-if finds, in one object."""

from collections.abc import Sequence

import msgspec

from seer_sgl.sim.bound import lower_bound_s
from seer_sgl.sim.variants import Scenario

from .advice import CALIBRATION, Advice, advice
from .lengths import LengthFigures, length_figures
from .orders import (
    CHUNK,
    Draw,
    Notice,
    OrderRow,
    Try,
    altered,
    best_chunk,
    best_concurrency,
    compare,
    gain_on,
    resampled,
)
from .profiles import Profile
from .replay import ReplayedRatio, ReplayedRollout


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `what-if --json`. Times in seconds, lengths in tokens.

    `engines`: their number; `gpus`: of all; `assumed`: what the trace does not have, and what no
    option said; `bound_s`: no order can be faster; `concurrency`: requests at once per engine, 0
    if there is no choice; `replayed`: rollouts on real servers.
    """

    trace: str
    format: str
    engines: int
    gpus: int
    profile: str
    assumed: list[str]
    lengths: LengthFigures
    orders: list[OrderRow]
    bound_s: float
    chunk_tokens: int
    chunks_tried: list[Try]
    concurrency: int
    concurrency_tried: list[Try]
    draws: list[Draw]
    calibration: list[str]
    advice: Advice
    replayed: list[ReplayedRollout] = []
    replayed_ratios: list[ReplayedRatio] = []


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`scenarios`: one per trace, the last is answered. `chosen_chunk`: None if it is to be found.
    `draws`: resamples, where there is one trace."""

    scenarios: list[Scenario]
    format: str
    profile: Profile
    assumed: list[str]
    price: float | None = None
    chosen_chunk: int | None = None
    draws: int = 0


def answer(question: Question, notice: Notice) -> WhatIfAnswer:
    """Simulates all orders and returns what they show. `notice`: is called before each step."""
    scenario = question.scenarios[-1]
    chunk, chunks = question.chosen_chunk, list[Try]()
    if chunk is None:
        chunk, chunks = best_chunk(scenario, notice)
    scenario = altered(scenario, {CHUNK: chunk})
    rows = compare(scenario, question.profile.gpus, question.price, notice)
    bound_s, alone_s = _bounds(scenario)
    concurrency, limits = best_concurrency(scenario, notice)
    draws = _draws(question, scenario, chunk, notice)
    engines = scenario.config.engine.count
    return WhatIfAnswer(
        trace=scenario.name,
        format=question.format,
        engines=engines,
        gpus=engines * question.profile.gpus,
        profile=question.profile.description,
        assumed=question.assumed,
        lengths=length_figures(scenario.responses),
        orders=rows,
        bound_s=bound_s,
        chunk_tokens=chunk,
        chunks_tried=chunks,
        concurrency=concurrency,
        concurrency_tried=limits,
        draws=draws,
        calibration=list(CALIBRATION),
        advice=advice(rows, bound_s, alone_s, draws),
    )


def _bounds(scenario: Scenario) -> tuple[float, float]:
    """Returns the least time of all responses in any order, and of the longest one alone."""
    group = max(scenario.responses, key=lambda group: max(group.lengths))
    longest = msgspec.structs.replace(group, lengths=[max(group.lengths)])
    cases = (scenario.responses, [longest])
    bound_s, alone_s = (lower_bound_s(some, scenario.config) for some in cases)
    return bound_s, alone_s


def _draws(question: Question, scenario: Scenario, chunk: int, notice: Notice) -> list[Draw]:
    """Returns the gain on the trace, and on the other traces or on resamples of its groups."""
    found = [gain_on(scenario)]
    others: Sequence[Scenario] = [
        altered(other, {CHUNK: chunk}) for other in question.scenarios[:-1]
    ]
    if not others:
        others = [resampled(scenario, seed) for seed in range(question.draws)]
    for other in others:
        notice(other.name)
        found.append(gain_on(other))
    return found
