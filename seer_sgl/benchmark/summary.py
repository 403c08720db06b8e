"""Summarises rollouts: medians with their range, ratios within a round. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from .arms import EVERY, Arm
from .measure import Row

FIGURES = (
    "throughput_tok_s",
    "wall_s",
    "tail_s",
    "retractions",
    "chunks",
    "migrations",
    "fetches",
    "recomputed_tokens",
    "moved_bytes",
    "kv_peak",
    "accept_length",
    "drafting_cpu_s",
    "forward_steps",
    "prefilled_tokens",
    "engine_cpu_s",
    "other_cpu_s",
    "driver_cpu_s",
)
IDENTICAL = 0.99  # least share of identical samples without a warning
Figures = dict[str, Any]


def summarize(rows: Sequence[Row]) -> dict[str, Figures]:
    """Returns the report's `arms`. Each arm has the median of every figure, over the rounds of a
    seed and then over the seeds; `range` has the least and greatest value of all rounds. Ratios
    compare rollouts of the same round, so of the same work."""
    return {name: _arm(EVERY[name], rows) for name in EVERY if _of(name, rows)}


def by_seed(rows: Sequence[Row]) -> dict[str, dict[str, Figures]]:
    """Returns the same figures for each seed separately."""
    seeds = sorted({row.seed for row in rows})
    return {str(seed): summarize([row for row in rows if row.seed == seed]) for seed in seeds}


def doubts(rows: Sequence[Row], imposed: bool) -> list[str]:
    """Returns warnings about the figures, one line each. `imposed`: the lengths are imposed, so the
    work is the same for any tokens."""
    if imposed:
        return []
    lines = []
    for name in EVERY:
        least = min((row.identical_share for row in _of(name, rows)), default=1.0)
        if least < IDENTICAL:
            lines.append(
                f"{name}: only {least:.1%} of the samples equal the reference's, so the work is "
                "not the same (engines without enable-deterministic-inference?)"
            )
    return lines


def _arm(arm: Arm, rows: Sequence[Row]) -> Figures:
    own = _of(arm.name, rows)
    figures: Figures = {"says": arm.description, "rounds": len(own), "over": arm.compared_with}
    ranges: dict[str, list[float]] = {}

    def put(name: str, figure: Callable[[Row], float | None]) -> None:
        values = [(row.seed, value) for row in own if (value := figure(row)) is not None]
        figures[name] = _median_of_seeds(values)
        if values:
            every = [value for _, value in values]
            ranges[name] = [_rounded(min(every)), _rounded(max(every))]

    for name in FIGURES:
        put(name, attrgetter(name))
    if arm.undivided:  # nothing is continued
        figures["recomputed_tokens"] = None
    put("idle_share", lambda row: None if row.idle is None else statistics.mean(row.idle))
    reference = _by_round(arm.reference, rows)
    put("speedup", lambda row: _ratio(row, reference, "throughput_tok_s"))
    put("tail_cut", lambda row: _cut(_ratio(row, reference, "tail_s")))
    if arm.compared_with is not None:
        before = _by_round(arm.compared_with, rows)
        put("gain", lambda row: _ratio(row, before, "throughput_tok_s"))
    figures["identical_share"] = min(row.identical_share for row in own)
    figures["idle_by_engine"] = _ranked([(row.seed, row.idle) for row in own if row.idle])
    figures["paper"] = None if arm.paper is None else msgspec.to_builtins(arm.paper)
    figures["range"] = ranges
    return figures


def _median_of_seeds(values: Sequence[tuple[int, float]]) -> float | None:
    """Returns the median over the seeds of each seed's median. `values`: (seed, value). Each seed
    counts once, independent of its number of rounds."""
    seeds: dict[int, list[float]] = {}
    for seed, value in values:
        seeds.setdefault(seed, []).append(value)
    if not seeds:
        return None
    return _rounded(statistics.median(statistics.median(each) for each in seeds.values()))


def _ranked(idle: Sequence[tuple[int, list[float]]]) -> list[float | None]:
    """Returns the median idle share of a rollout's most idle engine, of its second, and so on.
    Engines are ranked per rollout, because the most idle engine depends on the work."""
    ordered = [(seed, sorted(shares, reverse=True)) for seed, shares in idle]
    places = range(min((len(shares) for _, shares in ordered), default=0))
    return [_median_of_seeds([(seed, shares[i]) for seed, shares in ordered]) for i in places]


def _ratio(row: Row, others: Mapping[int, Row], figure: str) -> float | None:
    """Returns the row's figure over the other's in the same round; None if there is no other."""
    other = others.get(row.round)
    if other is None or not getattr(other, figure):
        return None
    return float(getattr(row, figure) / getattr(other, figure))


def _cut(ratio: float | None) -> float | None:
    return None if ratio is None else 1 - ratio


def _by_round(name: str, rows: Sequence[Row]) -> Mapping[int, Row]:
    return {row.round: row for row in _of(name, rows)}


def _of(name: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm == name]


def _rounded(value: float) -> float:
    return round(value, 4)
