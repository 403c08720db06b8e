"""The picture of rollouts that gave engines back: engines as lanes, and what a delay gained."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seer_sgl.report.style import (
    DASHES,
    HATCH,
    MUTED,
    OURS,
    OURS_LIGHT,
    PAPER,
    PLAIN,
    SMALL,
    headline,
    save,
    styled_figure,
)
from seer_sgl.sim.plots import MODEL_NAMES

from .table import Line, by_lengths, by_slack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES_OF, SLACK = "qwen2-vl-72b", 0.02  # the rollout that is shown as lanes
NEEDED = 0.1  # of the engines' time: what folding would have to give back


def draw(lines: Sequence[Line], path: Path) -> list[Path]:
    """Draws the rollouts of the published workloads. `path`: without a suffix."""
    own = {name: each for name, each in by_lengths(lines).items() if name in MODEL_NAMES}
    shown = _shown(own[LANES_OF])
    likely = by_slack(own[LANES_OF], oracle=False)[SLACK]
    released, late = (statistics.mean(line[key] for line in likely) for key in ("released", "late"))
    planned, needed = f"{100 * SLACK:.0f} %", f"{100 * NEEDED:.0f} %"
    with styled_figure(12, 9.6) as figure:
        headline(
            figure,
            f"Gathering the last requests gives back {100 * released:.0f} % of the engines' time, "
            f"for a\nrollout that takes {100 * late:.0f} % longer: too little",
            f"Simulated, {len(likely)} draws of lengths. Above: one rollout of Qwen2-VL-72B, "
            f"{planned} longer by plan.\nBelow: small marks are rollouts, large ones means. Red: "
            f"{planned} longer, and {needed} given back, which would be worth it.",
        )
        lanes, *curves = figure.subplot_mosaic(
            [["lanes"] * len(own), list(own)], height_ratios=[1, 1.15]
        ).values()
        _lanes(lanes, shown)
        for axis, (name, each) in zip(curves, own.items(), strict=True):
            axis.sharey(curves[0])
            _curve(axis, each)
            axis.set_title(MODEL_NAMES[name])
            axis.set_xlabel("longer than without")
        curves[0].set_ylabel("engine time given back")
        curves[0].legend(loc="lower right")
        return save(figure, path)


def has_lanes(lines: Sequence[Line]) -> bool:
    """Returns whether the rollouts have one that is shown as lanes."""
    own = [line for line in lines if line["lengths"] == LANES_OF]
    return SLACK in by_slack(own, oracle=False)


def _shown(lines: Sequence[Line]) -> Line:
    """Returns the rollout without known lengths that gave back most nearly the mean."""
    likely = by_slack(lines, oracle=False)[SLACK]
    mean = statistics.mean(line["released"] for line in likely)
    return min(likely, key=lambda line: abs(line["released"] - mean))


def _lanes(axis: "Axes", line: Line) -> None:
    """An engine is a lane: solid until it is given back."""
    end_s = line["wall_s"]
    ends = [at for at, _ in line["engines"]]
    ends += [end_s] * line["engines"][-1][1]
    for lane, at in enumerate(sorted(ends)):
        axis.barh(lane, at, color=OURS, height=0.8)
        axis.barh(
            lane, end_s - at, left=at, height=0.8, color=OURS_LIGHT, hatch=HATCH, edgecolor=OURS
        )
    axis.set_xlim(0, end_s)
    axis.set_yticks([])
    axis.set_ylabel(f"{len(ends)} engines")
    axis.set_xlabel("seconds of the rollout; hatched: given back")
    axis.text(
        min(ends) - 0.01 * end_s,
        0,
        f"{100 * line['released']:.1f} % given back",
        ha="right",
        va="center",
        color="white",
        fontsize=SMALL + 1,
    )


def _curve(axis: "Axes", lines: Sequence[Line]) -> None:
    """Delay against time given back, in percent."""
    plain = [line for line in lines if line["arm"] is None]
    slacks = sorted(float(slack) for slack in plain[0]["bound"])
    bound = [100 * statistics.mean(line["bound"][str(slack)] for line in plain) for slack in slacks]
    axis.plot([100 * slack for slack in slacks], bound, color=MUTED, ls=DASHES, label="bound")
    for oracle, colour, label in ((True, PLAIN, "lengths known"), (False, OURS, "not known")):
        means = []
        for each in by_slack(lines, oracle).values():
            across = [100 * line["late"] for line in each]
            up = [100 * line["released"] for line in each]
            axis.plot(across, up, ".", color=colour, ms=6, alpha=0.5)
            means.append((statistics.mean(across), statistics.mean(up)))
        axis.plot(*zip(*means, strict=True), "o-", color=colour, ms=7, label=label)
    axis.axhline(100 * NEEDED, color=PAPER, lw=1.2)
    axis.axvline(100 * SLACK, color=PAPER, lw=1.2)
    axis.xaxis.set_major_formatter("{x:.0f} %")
    axis.yaxis.set_major_formatter("{x:.0f} %")
