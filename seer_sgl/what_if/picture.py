"""The picture of an answer: lengths, and the time of every order."""

from pathlib import Path
from typing import TYPE_CHECKING

from seer_sgl.report.bars import BAR_HEIGHT, Bar, draw_bars
from seer_sgl.report.style import OURS, OURS_DARK, PAPER, PLAIN, headline, save, styled_figure

from .answer import WhatIfAnswer
from .orders import TODAY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(answer: WhatIfAnswer, path: Path) -> list[Path]:
    """Writes the picture as SVG and PNG and returns both paths. `path`: without a suffix."""
    with styled_figure(13, 2.6 + BAR_HEIGHT * len(answer.orders)) as figure:
        headline(
            figure,
            answer.advice.headline,
            f"Simulated: {answer.trace}, {answer.lengths.responses:,} responses on "
            f"{answer.gpus} GPUs.",
        )
        left, right = figure.subplots(1, 2, width_ratios=(2, 3))
        _lengths(left, answer)
        _orders(right, answer)
        return save(figure, path)


def _lengths(axis: "Axes", answer: WhatIfAnswer) -> None:
    lengths = answer.lengths
    widths = [end - begin for begin, end in zip(lengths.edges, lengths.edges[1:], strict=False)]
    axis.bar(lengths.edges[:-1], lengths.bins, widths, align="edge", color=PLAIN, edgecolor="white")
    axis.set_xlabel("tokens of a response")
    axis.set_ylabel("responses")
    axis.set_xlim(0)


def _orders(axis: "Axes", answer: WhatIfAnswer) -> None:
    bars = [Bar(row.wall_s, _colour(row.name)) for row in answer.orders]
    names = [row.label.replace(": ", ":\n", 1) for row in answer.orders]
    draw_bars(axis, names, bars, "seconds; the line: least without drafts")
    axis.axvline(answer.bound_s, color=PAPER, lw=2)


def _colour(name: str) -> str:
    if name in TODAY:
        return PLAIN
    return OURS_DARK if name.startswith("seer+") else OURS
