"""The picture of the arms."""

from pathlib import Path
from typing import Any

import pytest

from seer_sgl.benchmark import plots
from seer_sgl.benchmark.arms import EVERY
from seer_sgl.benchmark.measure import Row
from seer_sgl.benchmark.plots import draw_arms
from tests.support.rows import row

ARMS = [*EVERY.values()]


def rounds(*speeds: float, first: int = 0, seed: int = 1) -> list[Row]:
    """Returns rounds with Seer at these tokens per second and the baseline at 100."""
    return [
        row(arm, number, throughput_tok_s=speed, seed=seed)
        for number, ours in enumerate(speeds, first)
        for arm, speed in (("group_round_robin", 100.0), ("seer", ours), ("greedy", 90.0))
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would be saved."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, _: figures.append(figure))
    return figures


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw_arms(rounds(150.0, 120.0), ARMS, tmp_path / "arms")
    assert {path.name for path in tmp_path.iterdir()} == {"arms.png", "arms.svg"}


def test_bars_are_the_medians_over_all_rounds(tmp_path: Path, drawn: list[Any]) -> None:
    speeds = [*rounds(300.0, 320.0, seed=1), *rounds(100.0, first=2, seed=2)]
    draw_arms(speeds, ARMS, tmp_path / "arms")
    (figure,) = drawn
    throughput = figure.axes[0]
    widths = [bar.get_width() for bar in throughput.patches]
    assert widths == [1.0, 3.0], "the baseline, and seer"
    assert list(throughput.lines[-1].get_xdata()) == [3.0, 3.2, 1.0], "every round is a dot"


def test_rounds_without_a_tail_have_no_panel_of_tails(tmp_path: Path, drawn: list[Any]) -> None:
    short = [
        row(arm, 0, throughput_tok_s=speed, tail_s=0.0)
        for arm, speed in (("group_round_robin", 100.0), ("seer", 150.0))
    ]
    draw_arms(short, ARMS, tmp_path / "arms")
    (figure,) = drawn
    assert len(figure.axes) == 1
    finding, *_ = (text.get_text() for text in figure.texts)
    assert finding.endswith("1.50 times the throughput of pinned groups")


def test_a_long_finding_is_not_cut_off(tmp_path: Path, drawn: list[Any]) -> None:
    best = [
        row(arm, 0, throughput_tok_s=speed, tail_s=tail_s)
        for arm, speed, tail_s in (("group_round_robin", 100.0, 9.0), ("seer_published", 250.0, 1))
    ]
    draw_arms(best, ARMS, tmp_path / "arms")
    (figure,) = drawn
    finding, *_ = figure.texts
    assert len(finding.get_text()) > 90
    assert finding.get_window_extent().x1 < figure.bbox.x1
