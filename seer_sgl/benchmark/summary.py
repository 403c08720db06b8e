"""Summarises rollouts: medians with their range, ratios within a round. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from .arms import EVERY, Arm
from .measure import Row

# Of a row, what has no median of its own.
APART = {"arm", "seed", "round", "samples", "response_tokens", "idle", "identical_share"}
FIGURES = tuple(name for name in Row.__struct_fields__ if name not in APART)
IDENTICAL = 0.99  # least share of identical samples without a warning
KNOWN = tuple(EVERY.values())
Figures = dict[str, Any]


def summarize(rows: Sequence[Row], arms: Sequence[Arm] = KNOWN) -> dict[str, Figures]:
    """Returns the report's `arms`: those that ran. Each has the median of every figure over all its
    rounds; `range` has the least and the greatest value. For `speedup`, `tail_cut` and `gain`, each
    value is the ratio within one round (`ratios`)."""
    return {arm.name: _arm(arm, rows) for arm in arms if _of(arm.name, rows)}


def by_seed(rows: Sequence[Row], arms: Sequence[Arm] = KNOWN) -> dict[str, dict[str, Figures]]:
    """Returns the same figures for each seed separately."""
    seeds = sorted({row.seed for row in rows})
    return {str(seed): summarize([row for row in rows if row.seed == seed], arms) for seed in seeds}


def ratios(
    rows: Sequence[Row], arm: str, over: str, figure: str = "throughput_tok_s"
) -> dict[int, float]:
    """Returns the figure of an arm divided by the same figure of the arm `over`, by round.

    All arms of a round have the same work, so the ratio of throughputs is the gain. Rounds without
    the figure of both arms are left out, and rounds where the divisor is 0.
    """
    others = {row.round: getattr(row, figure) for row in _of(over, rows)}
    return {
        row.round: float(value / others[row.round])
        for row in _of(arm, rows)
        if (value := getattr(row, figure)) is not None and others.get(row.round)
    }


def doubts(rows: Sequence[Row], arms: Sequence[Arm], *, imposed: bool) -> list[str]:
    """Returns warnings about the figures, one line each. `imposed`: the lengths are imposed, so the
    work is the same for any tokens."""
    if imposed:
        return []
    lines = []
    for arm in arms:
        least = min((row.identical_share for row in _of(arm.name, rows)), default=1.0)
        if least < IDENTICAL:
            lines.append(
                f"{arm.name}: only {least:.1%} of the samples equal the reference's, so the work "
                "is not the same (engines without enable-deterministic-inference?)"
            )
    return lines


def _arm(arm: Arm, rows: Sequence[Row]) -> Figures:
    own = _of(arm.name, rows)
    values = _values(arm, rows)
    figures: Figures = {
        "description": arm.description,
        "rounds": len(own),
        "compared_with": arm.compared_with,
    }
    figures |= {name: _median(found) for name, found in values.items()}
    if arm.undivided:  # nothing is continued
        figures["recomputed_tokens"] = None
    figures["identical_share"] = min(row.identical_share for row in own)
    figures["idle_by_engine"] = _ranked([row.idle for row in own if row.idle])
    figures["paper"] = None if arm.paper is None else msgspec.to_builtins(arm.paper)
    figures["range"] = {
        name: [_rounded(min(found)), _rounded(max(found))]
        for name, found in values.items()
        if found
    }
    return figures


def _values(arm: Arm, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Returns the values of each figure, one per round that has it."""
    own = _of(arm.name, rows)
    values: dict[str, list[float]] = {
        name: [value for row in own if (value := getattr(row, name)) is not None]
        for name in FIGURES
    }
    values["idle_share"] = [statistics.mean(row.idle) for row in own if row.idle is not None]
    values["speedup"] = [*ratios(rows, arm.name, arm.reference).values()]
    tails = ratios(rows, arm.name, arm.reference, "tail_s")
    values["tail_cut"] = [1 - ratio for ratio in tails.values()]
    if arm.compared_with is not None:
        values["gain"] = [*ratios(rows, arm.name, arm.compared_with).values()]
    return values


def _ranked(idle: Sequence[list[float]]) -> list[float | None]:
    """Returns the median idle share of a rollout's most idle engine, of its second, and so on.
    Engines are ranked per rollout, because the most idle engine depends on the work."""
    ordered = [sorted(shares, reverse=True) for shares in idle]
    places = range(min((len(shares) for shares in ordered), default=0))
    return [_median([shares[place] for shares in ordered]) for place in places]


def _median(values: Sequence[float]) -> float | None:
    return _rounded(statistics.median(values)) if values else None


def _of(name: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.arm == name]


def _rounded(value: float) -> float:
    return round(value, 4)
