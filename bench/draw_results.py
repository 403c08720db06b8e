"""The pictures of the committed benchmarks: the waterfall, and the gain by idle share."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.gains import (
    PAPER_GAIN,
    PAPER_IDLE,
    SINGLE,
    Box,
    Ratio,
    SeedGain,
    Step,
    by_seed,
    idle_shares,
    place_labels,
    ratios,
    seed_gains,
    steps,
)
from seer_sgl.benchmark.arms import BASELINE as PINNED
from seer_sgl.benchmark.arms import SEER
from seer_sgl.benchmark.measure import Row
from seer_sgl.report.style import (
    DASHES,
    INK,
    MUTED,
    OURS,
    OURS_LIGHT,
    PAPER,
    PAPER_LIGHT,
    PLAIN,
    SMALL,
    TEXT,
    Point,
    headline,
    save,
    styled_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_waterfall(rounds: Sequence[Row], path: Path) -> list[Path]:
    """Bars: medians and the paper's values. Marks: every round, a shape and a lane per seed."""
    found, idle = steps(rounds), idle_shares(rounds)
    gain = {step.arm.name: step.median for step in found}
    shapes = dict(zip(idle, "osD^v<>", strict=False))
    with styled_figure(10, 8.4) as figure:
        headline(
            figure,
            f"Spreading requests brings {gain[SINGLE]:.2f}x, and drafts from siblings raise it\n"
            f"to {gain[SEER]:.2f}x; the paper reports {PAPER_GAIN}x for all of Seer",
            f"Bars: medians of {len(found[0].ratios)} rounds. Marks: every round. Measured on two "
            "engines, one CPU core each, a small model.\nThe paper: Qwen2-VL-72B on 128 GPUs.",
            fit=False,
        )
        axis = figure.add_axes((0.285, 0.16, 0.7, 0.67))
        for place, step in enumerate(found):
            _draw_step(axis, place, step)
            for lane, (seed, shape) in enumerate(shapes.items()):
                values = [one.value for one in step.ratios if one.seed == seed]
                at = [place - 0.43 + 0.1 * lane] * len(values)
                axis.plot(values, at, shape, color=INK, ms=6.5, mec="white", mew=0.6)
        axis.axvline(1, color=MUTED, lw=1.2, ls=DASHES, zorder=0)
        axis.set_yticks(range(len(found)), [step.arm.label for step in found])
        axis.tick_params(axis="y", length=0, labelsize=TEXT, labelcolor=INK)
        axis.set_ylim(len(found) - 0.5, -0.6)
        axis.set_xlim(0, 2.65)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel("throughput, multiples of plain SGLang with pinned groups")
        _legends(figure, {shape: f"{100 * idle[seed]:.0f} %" for seed, shape in shapes.items()})
        return save(figure, path)


def _draw_step(axis: "Axes", place: int, step: Step) -> None:
    """The median, and below it the paper's value."""
    colour = PLAIN if step.arm.name in (PINNED, SINGLE) else OURS
    axis.barh(place, step.median, height=0.3, color=colour)
    _value(axis, (step.median, place), colour, 15)
    below = place + 0.26
    if step.arm.paper is None:
        axis.text(0.01, below, "not in the paper", va="center", fontsize=SMALL, color=MUTED)
    else:
        axis.barh(below, step.arm.paper.throughput, height=0.17, color=PAPER_LIGHT)
        _value(axis, (step.arm.paper.throughput, below), PAPER, TEXT)


def _value(axis: "Axes", at: Point, colour: str, size: float) -> None:
    axis.annotate(
        f"{at[0]:.2f}",
        at,
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=size,
        fontweight="bold",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _legends(figure: "Figure", idle_by_shape: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = {PLAIN: "plain SGLang", OURS: "seer-sgl", PAPER_LIGHT: "the paper"}
    bars = [Patch(color=colour, label=name) for colour, name in colours.items()]
    marks = [
        Line2D([], [], marker=shape, ls="", color=INK, ms=8, label=share)
        for shape, share in idle_by_shape.items()
    ]
    words = Line2D([], [], ls="", label="Each mark is a round. Pinned engines idle:")
    for handles, y in ((bars, 0.045), ([words, *marks], 0.008)):
        figure.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(0.985, y),
            ncols=len(handles),
            columnspacing=1.4,
            handletextpad=0.3,
            handlelength=1.3,
            borderpad=0,
        )


def draw_gain(rounds: Sequence[Row], path: Path) -> list[Path]:
    """A dot per seed over pinned groups, a lighter one over single requests in turn; small dots are
    the rounds of a seed that has several."""
    gains = seed_gains(rounds)
    at = [100 * gain.idle for gain in gains]
    dark, light = [gain.over_pinned for gain in gains], [gain.over_single for gain in gains]
    over_pinned, over_single = (ratios(rounds, SEER, over) for over in (PINNED, SINGLE))
    dark_rounds, light_rounds = (_round_dots(gains, over) for over in (over_pinned, over_single))
    large = "Large dots: medians." if dark_rounds else ""
    with styled_figure(10, 7) as figure:
        headline(
            figure,
            "The more pinned engines idle, the more seer-sgl gains",
            f"{len(gains)} seeds, {_rounds_per_seed(over_pinned)}; two engines with one CPU core "
            f"each, a small model. {large}\nMedians of all rounds: "
            f"{_median(over_pinned):.2f}x over pinned groups, {_median(over_single):.2f}x over "
            "single requests in turn.",
            fit=False,
        )
        axis = figure.add_axes((0.085, 0.115, 0.9, 0.735))
        axis.vlines(at, light, dark, color=OURS_LIGHT, lw=2.5, zorder=1)
        axis.axhline(1, color=MUTED, lw=1.2, ls=DASHES, zorder=0)
        single_name = "plain SGLang with single requests in turn"
        for values, dots, size, fill, edge, name in (
            (dark, dark_rounds, 11, OURS, "white", "plain SGLang with pinned groups"),
            (light, light_rounds, 8, OURS_LIGHT, OURS, single_name),
        ):
            for x, y in dots:
                axis.plot(100 * x, y, "o", ms=size / 2, color=fill, mec=edge, mew=0.6)
            label = f"seer-sgl over {name}"
            axis.plot(at, values, "o", ms=size, color=fill, mec=edge, label=label)
        axis.plot(
            100 * PAPER_IDLE,
            PAPER_GAIN,
            "D",
            ms=11,
            color=PAPER,
            label="the paper: Seer over pinned groups, Qwen2-VL-72B",
        )
        axis.set_xlim(-1.5, max(51, *at))
        axis.set_ylim(0.85, max(3.45, *(one.value + 0.2 for one in over_pinned)))
        axis.set_yticks([1, 1.5, 2, 2.5, 3])
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")
        axis.set_xlabel("share of the time that engines idle when whole groups are pinned to them")
        axis.set_ylabel("throughput of seer-sgl, multiples")
        axis.legend(loc="upper left", labelspacing=0.7, borderpad=0)
        _label_dots(axis, gains, [*dark_rounds, *light_rounds])
        return save(figure, path)


def _round_dots(gains: Sequence[SeedGain], found: Sequence[Ratio]) -> list[Point]:
    """A point (idle share, gain) per round of each seed that has several."""
    values = by_seed(found)
    return [
        (gain.idle, value)
        for gain in gains
        if len(values[gain.seed]) > 1
        for value in values[gain.seed]
    ]


def _median(found: Sequence[Ratio]) -> float:
    return median(one.value for one in found)


def _rounds_per_seed(found: Sequence[Ratio]) -> str:
    counts = {len(values) for values in by_seed(found).values()}
    least, most = min(counts), max(counts)
    if least < most:
        return f"{least} to {most} rounds per seed"
    return f"{most} round{'' if most == 1 else 's'} per seed"


def _label_dots(axis: "Axes", gains: Sequence[SeedGain], others: Sequence[Point]) -> None:
    """The number of each seed and its gain, and the paper's point. No label covers `others`."""
    points_per_pixel = 72 / axis.figure.dpi

    def point(x: float, y: float) -> Point:
        across, up = axis.transData.transform((100 * x, y)) * points_per_pixel
        return float(across), float(up)

    dark = [point(gain.idle, gain.over_pinned) for gain in gains]
    light = [point(gain.idle, gain.over_single) for gain in gains]
    paper = point(PAPER_IDLE, PAPER_GAIN)
    (left, level), (right, _) = (point(end / 100, 1) for end in axis.get_xlim())
    obstacles = [
        Box(-math.inf, -math.inf, left, math.inf),  # the axis
        Box(right, -math.inf, math.inf, math.inf),
        Box(-math.inf, level - 1, math.inf, level + 1),  # the line at 1
        Box(paper[0] - 9, paper[1] - 9, paper[0] + 9, paper[1] + 9),
        *(Box(x - 6, y - 6, x + 6, y + 6) for x, y in (*dark, *light)),
        *(Box(x - 3, y - 3, x + 3, y + 3) for x, y in (point(*other) for other in others)),
        *(
            Box(x - 1, min(y, z), x + 1, max(y, z))
            for (x, y), (_, z) in zip(dark, light, strict=True)
        ),
    ]
    best = max(gains, key=lambda gain: gain.over_pinned)
    labels = [f"{100 * PAPER_IDLE:.0f} % idle: {PAPER_GAIN:.2f}"]  # the longest has the most room
    labels += [
        f"{'seed ' if gain is best else ''}{gain.seed}: {gain.over_pinned:.2f}" for gain in gains
    ]
    corners = place_labels([paper, *dark], [7.4 * len(word) for word in labels], obstacles, 13)
    for place, (word, corner) in enumerate(zip(labels, corners, strict=True)):
        axis.annotate(
            word,
            (corner[0], corner[1] + 2.2),  # the baseline
            xycoords="figure points",
            fontsize=SMALL + 1,
            fontweight="bold",
            color=OURS if place else PAPER,
        )
