"""The advice, its first line, from rows and draws that are given."""

import pytest

from seer_sgl.what_if.advice import Advice, advice
from seer_sgl.what_if.orders import LABELS, OURS, Draw, OrderRow


def row(name: str, wall_s: float) -> OrderRow:
    return OrderRow(
        name=name,
        label=name,
        wall_s=wall_s,
        tail_s=0,
        idle_share=0,
        gpu_hours=0,
        idle_gpu_hours=0,
        ratio=1,
    )


def draw(today_s: float, ours_s: float) -> Draw:
    gain = round(today_s / ours_s, 3) if ours_s else 1.0
    return Draw(source="t", today_s=today_s, ours_s=ours_s, gain=gain)


def advised(*draws: Draw) -> Advice:
    first = draws[0]
    rows = [row(name, first.ours_s if name == OURS else first.today_s) for name in LABELS]
    return advice(rows, first.ours_s, first.ours_s, draws)


@pytest.mark.parametrize(
    ("draws", "answer", "headline"),
    [
        ([draw(200, 100), draw(99, 100)], "perhaps", "no gain on 1 of 2 sets of lengths"),
        ([draw(110, 100), draw(111, 100)], "perhaps", "smaller than the error"),
        ([draw(200, 100), draw(150, 100)], "yes", "save 43%"),
        ([draw(101, 100), draw(99, 100)], "no", "bring nothing"),
        # Of all sets: the shown one saves 1 s, and the others 100.
        ([draw(3, 2), draw(200, 100), draw(200, 100)], "yes", "save 45%"),
        ([draw(200, 100), draw(1.2, 1), draw(80, 176)], "no", "save 1.4 s per rollout"),
        ([draw(0, 0)], "no", "bring nothing"),
    ],
)
def test_the_first_line_is_about_all_sets(draws: list[Draw], answer: str, headline: str) -> None:
    given = advised(*draws)
    assert given.answer == answer
    assert headline in given.headline
