"""The figures of a benchmark's report, and their form in a markdown table. Pure.

Gains and tail cuts are ratios within one round, from seer_sgl.benchmark.summary.ratios. A figure of
an arm is the median over its rounds; brackets hold the least and the greatest value of any round.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

import msgspec

from bench.full.router import MEASURED
from seer_sgl.benchmark.arms import BASELINE
from seer_sgl.benchmark.measure import Row
from seer_sgl.benchmark.summary import ratios

Report = Mapping[str, Any]
Lines = Iterator[str]


def rounds_of(report: Report) -> list[Row]:
    """Returns the rollouts in the order of their rounds."""
    return sorted(msgspec.convert(report["rounds"], list[Row]), key=lambda row: row.round)


def measured(rows: Sequence[Row]) -> list[str]:
    """Returns the arms at the temperature of the config, in their order."""
    found = {row.arm for row in rows}
    return [arm.name for arm in MEASURED if arm.name in found]


def values(rows: Iterable[Row], arm: str, figure: str) -> list[float]:
    """Returns a figure of an arm, one value per round."""
    return [getattr(row, figure) for row in rows if row.arm == arm]


def idle_shares(rows: Iterable[Row]) -> list[float]:
    """Returns the idle share of the baseline's engines, one value per round."""
    return [mean(row.idle) for row in rows if row.arm == BASELINE and row.idle]


def gains(rows: Sequence[Row], arm: str, over: str = BASELINE) -> list[float]:
    """Returns the throughput of an arm divided by that of the arm `over`, one value per round."""
    return [*ratios(rows, arm, over).values()]


def tail_cuts(rows: Sequence[Row], arm: str) -> list[float]:
    """Returns 1 minus the tail time divided by the baseline's, one value per round."""
    return [1 - ratio for ratio in ratios(rows, arm, BASELINE, "tail_s").values()]


def per_seed(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Returns the rollouts of each seed, in the order in which the seeds first ran."""
    seeds: dict[int, list[Row]] = {}
    for row in rows:
        seeds.setdefault(row.seed, []).append(row)
    return seeds


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Lines:
    """Yields the lines of a markdown table."""
    for line in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(str, line))} |"


def decimals(value: float) -> str:
    """Returns a number with two decimals."""
    return f"{value:.2f}"


def seconds(value: float) -> str:
    """Returns a time with one decimal."""
    return f"{value:.1f} s"


def percent(share: float, digits: int = 0) -> str:
    """Returns a share in percent, without a negative zero."""
    return f"{share:z.{digits}%}".replace("%", " %")


def spread(found: Sequence[float], form: Callable[[float], str] = decimals) -> str:
    """Returns the median and the range: median (least to greatest)."""
    return f"{form(median(found))} ({form(min(found))} to {form(max(found))})"


def code(arm: str) -> str:
    """Returns the arm's name as code."""
    return f"`{arm}`"
