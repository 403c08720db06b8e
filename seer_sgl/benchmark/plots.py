"""The picture of a benchmark: throughput and tail of all arms."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from seer_sgl.report.bars import BAR_HEIGHT, Bar, draw_bars, paper_legend
from seer_sgl.report.style import OURS, PLAIN, headline, save, styled_figure

from .arms import BASELINE, Arm
from .measure import Row
from .summary import ratios


def draw_arms(rows: Sequence[Row], arms: Sequence[Arm], path: Path) -> list[Path]:
    """Draws throughput and tail of every arm as multiples of the baseline's in the same round.

    A bar is the median over all rounds, a dot one round. Greedy arms have another baseline and are
    left out. Nothing is drawn without a round of the baseline.
    """
    drawn = [arm for arm in arms if not arm.greedy and ratios(rows, arm.name, BASELINE)]
    if not drawn:
        return []
    with styled_figure(12, 2.0 + BAR_HEIGHT * len(drawn)) as figure:
        left, right = (
            [_bar(arm, rows, figure_name) for arm in drawn]
            for figure_name in ("throughput_tok_s", "tail_s")
        )
        best = max(range(len(drawn)), key=lambda place: left[place].value)
        finding = f"{left[best].value:.2f} times the throughput of pinned groups"
        if right[best].rounds:
            finding += f", {_tail(right[best].value)}"
        headline(
            figure,
            f"{_words(drawn[best])}: {finding}",
            "Bars: medians of all rounds. Dots: every round.",
        )
        panels = [(left, "throughput")]
        if any(bar.rounds for bar in right):  # few requests have no tail
            panels.append((right, "tail"))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        names = [arm.label for arm in drawn]
        for axis, (bars, figure_name) in zip(axes, panels, strict=True):
            draw_bars(axis, names, bars, f"{figure_name}, multiples of pinned groups")
        paper_legend(figure, "the paper, Qwen2-VL-72B")
        return save(figure, path)


def _tail(ratio: float) -> str:
    return f"a tail {100 * abs(1 - ratio):.0f} % {'shorter' if ratio <= 1 else 'longer'}"


def _words(arm: Arm) -> str:
    return arm.label.rpartition(":\n")[2].replace("\n", " ")


def _bar(arm: Arm, rows: Sequence[Row], figure_name: str) -> Bar:
    rounds = [*ratios(rows, arm.name, BASELINE, figure_name).values()]
    paper = None
    if arm.paper is not None:
        paper = arm.paper.tail if figure_name == "tail_s" else arm.paper.throughput
    colour = PLAIN if arm.undivided else OURS
    return Bar(median(rounds) if rounds else 0.0, colour, rounds, paper)
