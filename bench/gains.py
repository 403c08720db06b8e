"""Reads the committed benchmarks and computes what their pictures show."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from seer_sgl.benchmark import summary
from seer_sgl.benchmark.arms import BASELINE as PINNED
from seer_sgl.benchmark.arms import EVERY, SEER, SEER_IN_PAPER, Arm
from seer_sgl.benchmark.measure import Row
from seer_sgl.report.style import Point

RESULTS = Path(__file__).parent / "results"
ARMS_REPORT = RESULTS / "2026-11-27-cpu" / "report.json"
SEEDS_REPORTS = tuple(
    RESULTS / run / "report.json" for run in ("2026-11-27-cpu-seeds", "2026-11-28-cpu-seeds")
)

SINGLE = "request_round_robin"
GAPS = (10.0, 20.0)  # points between a dot's middle and its label
PAPER_IDLE = 0.37  # Qwen2-VL-72B: the share of the time that the baseline's engines idle
PAPER_GAIN = SEER_IN_PAPER.throughput


class Report(msgspec.Struct, frozen=True):
    """The part of a benchmark's report that is drawn."""

    rounds: list[Row]


class Ratio(NamedTuple):
    """How many times as fast one arm was as another in the same round."""

    seed: int
    round: int
    value: float


class Step(NamedTuple):
    """An arm with what was measured."""

    arm: Arm
    ratios: list[Ratio]
    median: float


class SeedGain(NamedTuple):
    """What seer-sgl gains on the prompts of one seed: medians of its rounds.

    `idle`: mean share of the pinned engines in a round.
    """

    seed: int
    idle: float
    over_pinned: float
    over_single: float


class Box(NamedTuple):
    """A rectangle in points."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        """Returns whether the two have an area in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


TECHNIQUES = tuple(EVERY[name] for name in (PINNED, SINGLE, "divided", "kv_pool", "context", SEER))


def read_rounds(*paths: Path) -> list[Row]:
    """Returns the rounds of each `report.json`, numbered on from one to the next."""
    rounds: list[Row] = []
    for path in paths:
        first = max((row.round + 1 for row in rounds), default=0)
        found = msgspec.json.decode(path.read_bytes(), type=Report).rounds
        rounds += [msgspec.structs.replace(row, round=first + row.round) for row in found]
    return rounds


def ratios(rounds: Sequence[Row], arm: str, over: str = PINNED) -> list[Ratio]:
    """Returns the wall time of `over` divided by that of `arm`, for each round that has both.

    All arms of a round produce the same tokens, so this is the ratio of their throughputs.
    """
    seeds = {row.round: row.seed for row in rounds}
    values = summary.ratios(rounds, over, arm, "wall_s")
    return [Ratio(seeds[number], number, value) for number, value in values.items()]


def steps(rounds: Sequence[Row], arms: Sequence[Arm] = TECHNIQUES) -> list[Step]:
    """Returns the ratios of each arm that was measured to pinned groups; the median is over all
    rounds."""
    measured = ((arm, ratios(rounds, arm.name)) for arm in arms)
    return [
        Step(each, found, median(one.value for one in found)) for each, found in measured if found
    ]


def by_seed(found: Iterable[Ratio]) -> dict[int, list[float]]:
    """Returns the values of each seed, one per round."""
    values: dict[int, list[float]] = {}
    for one in found:
        values.setdefault(one.seed, []).append(one.value)
    return values


def idle_shares(rounds: Iterable[Row]) -> dict[int, float]:
    """Returns by seed how long pinned engines idle, longest first: the mean of the engines, the
    median of the rounds."""
    shares: dict[int, list[float]] = {}
    for row in rounds:
        if row.arm == PINNED and row.idle:
            shares.setdefault(row.seed, []).append(fmean(row.idle))
    medians = {seed: median(found) for seed, found in shares.items()}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


def seed_gains(rounds: Sequence[Row]) -> list[SeedGain]:
    """Returns the gain of each seed that has a round of all three arms, longest idle first."""
    pinned, single = (by_seed(ratios(rounds, SEER, over)) for over in (PINNED, SINGLE))
    return [
        SeedGain(seed, share, median(pinned[seed]), median(single[seed]))
        for seed, share in idle_shares(rounds).items()
        if seed in pinned and seed in single
    ]


def place_labels(
    points: Sequence[Point], widths: Sequence[float], obstacles: Sequence[Box], height: float
) -> list[Point]:
    """Returns the lower left corner of a label beside each point, all in points.

    A label goes to the first of these places where it covers neither an obstacle nor an earlier
    label: right, left, above, below, right and higher or lower, then the same farther away. It
    goes to the right if there is no such place.
    """
    taken, corners = list(obstacles), []
    for (x, y), width in zip(points, widths, strict=True):
        boxes = [
            Box(left, low, left + width, low + height)
            for gap in GAPS
            for left, low in (
                (x + gap, y - height / 2),
                (x - gap - width, y - height / 2),
                (x - width / 2, y + gap),
                (x - width / 2, y - gap - height),
                (x + gap, y + gap / 2),
                (x + gap, y - gap / 2 - height),
            )
        ]
        free = (box for box in boxes if not any(box.meets(other) for other in taken))
        chosen = next(free, boxes[0])
        taken.append(chosen)
        corners.append((chosen.left, chosen.bottom))
    return corners
