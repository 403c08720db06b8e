"""The pictures of a benchmark: lanes of two arms, throughput and tail of all arms, the soak."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from seer_sgl.report.bars import BAR_HEIGHT, Bar, draw_bars, paper_legend
from seer_sgl.report.lanes import Lanes, draw_lane, lanes_legend, shade_tail
from seer_sgl.report.style import (
    INK,
    MUTED,
    OURS,
    PAPER,
    PLAIN,
    headline,
    save,
    styled_figure,
)

from .arms import ARMS, BASELINE, Arm
from .measure import Row
from .pair import Pair
from .soak import SoakRow
from .summary import ratios


def draw_pair(pair: Pair, path: Path) -> list[Path]:
    """Draws the requests on each engine: the baseline above, seer-sgl below, on one time axis."""
    halves = (
        (pair.baseline, "Plain SGLang, whole groups pinned to engines", PLAIN),
        (pair.seer, "seer-sgl", OURS),
    )
    count = sum(len(lanes.engines) for lanes, _, _ in halves)
    with styled_figure(11, 2.6 + 1.35 * count) as figure:
        headline(figure, pair.finding, pair.details)
        axes = iter(figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0])
        for lanes, name, colour in halves:
            for place, lane in enumerate(lanes.engines):
                axis = next(axes)
                draw_lane(axis, lanes, lane, colour)
                shade_tail(axis, lanes)
                if place == 0:
                    axis.set_title(f"{name}: {_times(lanes)}", color=colour, fontweight="bold")
        axis.set_xlim(0, max(lanes.wall_s for lanes, _, _ in halves))
        axis.set_ylim(0, 1.08 * max(lanes.most for lanes, _, _ in halves))
        axis.set_xlabel("seconds since the rollout began; height: requests on the engine")
        waiting = any(lanes.kv_waiting for lanes in (pair.baseline, pair.seer))
        lanes_legend(figure, MUTED, kv_waiting=waiting)
        return save(figure, path)


def _times(lanes: Lanes) -> str:
    return f"{lanes.wall_s:.1f} s, {lanes.tail_s:.1f} s of it for the last 10 % of the requests"


def draw_arms(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draws throughput and tail of every arm as multiples of the baseline's in the same round.

    A bar is the median over all rounds, a dot one round. Greedy arms have another baseline and are
    left out. Nothing is drawn without a round of the baseline.
    """
    drawn = [arm for arm in ARMS.values() if ratios(rows, arm.name, BASELINE)]
    if not drawn:
        return []
    with styled_figure(12, 2.0 + BAR_HEIGHT * len(drawn)) as figure:
        left, right = (
            [_bar(arm, rows, figure_name) for arm in drawn]
            for figure_name in ("throughput_tok_s", "tail_s")
        )
        best = max(range(len(drawn)), key=lambda place: left[place].value)
        headline(
            figure,
            f"{_words(drawn[best])}: {left[best].value:.2f} times the throughput of pinned groups, "
            f"{right[best].value:.2f} times the tail",
            "Bars: medians of all rounds. Dots: every round.",
        )
        panels = figure.subplots(1, 2, sharey=True)
        names = [arm.label for arm in drawn]
        draw_bars(panels[0], names, left, "throughput, multiples of pinned groups")
        draw_bars(panels[1], names, right, "tail, multiples of pinned groups")
        paper_legend(figure, "the paper, Qwen2-VL-72B")
        return save(figure, path)


def _words(arm: Arm) -> str:
    return arm.label.rpartition(":\n")[2].replace("\n", " ")


def _bar(arm: Arm, rows: Sequence[Row], figure_name: str) -> Bar:
    rounds = [*ratios(rows, arm.name, BASELINE, figure_name).values()]
    paper = None
    if arm.paper is not None:
        paper = arm.paper.tail if figure_name == "tail_s" else arm.paper.throughput
    colour = PLAIN if arm.undivided else OURS
    return Bar(median(rounds) if rounds else 0.0, colour, rounds, paper)


def draw_soak(rows: Sequence[SoakRow], path: Path) -> list[Path]:
    """Draws time, memory growth and KV hits over the rollouts of the soak."""
    numbers = [row.number + 1 for row in rows]
    with styled_figure(12, 4.6) as figure:
        headline(figure, f"{len(rows)} rollouts in a row: time, memory and KV found")
        time, memory, hits = figure.subplots(1, 3)
        time.plot(numbers, [row.wall_s for row in rows], "o-", color=OURS)
        time.set_title("seconds")
        time.set_ylim(0, 1.15 * time.get_ylim()[1])
        for name, style, colour in (
            ("driver", "o-", OURS),
            ("engines", "^-", PLAIN),
            ("others", "s-", PAPER),
        ):
            used: list[float] = [getattr(row, f"{name}_mb") for row in rows]
            label = f"{name}, above {used[0]:,.0f}"
            memory.plot(numbers, [mb - used[0] for mb in used], style, color=colour, label=label)
        memory.axhline(0, color=INK, lw=0.8, zorder=0)
        memory.set_title("MB above the first rollout's")
        memory.legend()
        shares = [math.nan if row.kv_hit_share is None else row.kv_hit_share for row in rows]
        hits.plot(numbers, shares, "o-", color=OURS)
        hits.set_title("share of the KV that was found")
        hits.set_ylim(0, 1.02)
        for axis in (time, memory, hits):
            axis.set_xlabel("rollout")
            axis.xaxis.get_major_locator().set_params(integer=True)
        return save(figure, path)
