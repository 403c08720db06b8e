"""Panels of horizontal bars: a value per name, a dot per round, and the paper's value."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .style import INK, PAPER, SMALL, TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_HEIGHT = 0.62  # inches per bar of a panel


class Bar(NamedTuple):
    """One bar. `rounds`: the values whose median it shows; `paper`: the paper's value."""

    value: float
    colour: str
    rounds: Sequence[float] = ()
    paper: float | None = None


def draw_bars(axis: "Axes", names: Sequence[str], bars: Sequence[Bar], label: str) -> None:
    """Draws a panel; the values stand in a column beside the bars, the paper's in another.

    `label`: what the values are, for the horizontal axis.
    """
    most = max([*(max(bar.value, bar.paper or 0.0, *bar.rounds) for bar in bars), 1e-9])
    for place, bar in enumerate(bars):
        axis.barh(place, bar.value, height=0.6, color=bar.colour)
        _number(axis, 1.24 * most, place, bar.value, INK)
        axis.plot(bar.rounds, [place] * len(bar.rounds), "o", color=INK, ms=6, mec="white")
        if bar.paper is not None:
            axis.vlines(bar.paper, place - 0.4, place + 0.4, color=PAPER, lw=2.6)
            _number(axis, 1.46 * most, place, bar.paper, PAPER)
    if any(bar.paper is not None for bar in bars):
        for x, header, colour in ((1.24, "here", INK), (1.46, "paper", PAPER)):
            axis.text(x * most, -0.62, header, ha="right", va="bottom", color=colour, size=SMALL)
    axis.set_yticks(range(len(bars)), names)
    axis.tick_params(axis="y", length=0, labelsize=SMALL + 1, labelcolor=INK)
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_xlim(0, 1.46 * most)
    axis.set_xticks([tick for tick in axis.get_xticks() if tick <= most])
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(label)


def _number(axis: "Axes", x: float, place: int, value: float, colour: str) -> None:
    words = f"{value:.2f}" if value < 100 else f"{value:,.0f}"
    axis.text(x, place, words, ha="right", va="center", color=colour, size=TEXT, weight="bold")


def paper_legend(figure: "Figure", name: str) -> None:
    """Explains the marks of the paper's values below the panels."""
    from matplotlib.lines import Line2D

    mark = Line2D([], [], color=PAPER, lw=2.6, ls="", marker="|", ms=14, mew=2.6, label=name)
    figure.legend(handles=[mark], loc="outside lower right")
