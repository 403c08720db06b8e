"""From rollouts to figures: medians with their range, ratios within a round. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
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
    "engine_cpu_s",
    "driver_cpu_s",
)
Figures = dict[str, Any]


def summarize(rows: Sequence[Row]) -> dict[str, Figures]:
    """The report's `arms`: of each arm the median of every figure, and under `range` its least and
    greatest value. Ratios compare rollouts of the same round, so of the same work."""
    return {name: _arm(EVERY[name], rows) for name in EVERY if _of(name, rows)}


def by_seed(rows: Sequence[Row]) -> dict[str, dict[str, Figures]]:
    """The same for each seed alone."""
    seeds = sorted({row.seed for row in rows})
    return {str(seed): summarize([row for row in rows if row.seed == seed]) for seed in seeds}


def _arm(arm: Arm, rows: Sequence[Row]) -> Figures:
    own = _of(arm.name, rows)
    figures: Figures = {"says": arm.says, "rounds": len(own)}
    ranges: dict[str, list[float]] = {}

    def put(name: str, values: Sequence[float | None]) -> None:
        known = [value for value in values if value is not None]
        figures[name] = _rounded(statistics.median(known)) if known else None
        if known:
            ranges[name] = [_rounded(min(known)), _rounded(max(known))]

    for name in FIGURES:
        put(name, [getattr(row, name) for row in own])
    put("idle_share", [statistics.mean(row.idle) for row in own])
    reference = _of(arm.reference, rows)
    put("speedup", _ratios(own, reference, lambda row: row.throughput_tok_s))
    put("tail_cut", [1 - x for x in _ratios(own, reference, lambda row: row.tail_s)])
    if arm.over is not None:
        put("gain", _ratios(own, _of(arm.over, rows), lambda row: row.throughput_tok_s))
    figures["identical_share"] = min(row.identical_share for row in own)
    figures["idle_by_engine"] = _engine_medians([row.idle for row in own])
    figures["paper"] = None if arm.paper is None else msgspec.to_builtins(arm.paper)
    figures["range"] = ranges
    return figures


def _engine_medians(idle: Sequence[Sequence[float]]) -> list[float]:
    return [_rounded(statistics.median(each)) for each in zip(*idle, strict=True)]


def _ratios(
    own: Sequence[Row], other: Sequence[Row], figure: Callable[[Row], float]
) -> list[float]:
    """Own over other in every round that has both."""
    others: Mapping[int, Row] = {row.round: row for row in other}
    return [
        figure(row) / figure(others[row.round])
        for row in own
        if row.round in others and figure(others[row.round])
    ]


def _of(name: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm == name]


def _rounded(value: float) -> float:
    return round(value, 4)
