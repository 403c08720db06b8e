"""The choice of the rounds to draw; the pictures are written."""

from pathlib import Path
from typing import Any

import pytest

from seer_sgl.benchmark import plots
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.plots import draw_arms, draw_lanes, draw_soak, lanes_title, typical_pair
from seer_sgl.benchmark.summary import summarize
from seer_sgl.report.recorder import Recorder
from tests.helpers import make_group
from tests.report.test_report import info

from .test_soak import soak_row
from .test_summary import row


def rolled(arm: str, number: int, speed: float, **changed: Any) -> Measurement:
    record = Recorder("r", 1, [info("a"), info("b")], [make_group(n=2)], started_at=0.0)
    for engine in record.engines.values():
        engine.step(0.0, +1)
        engine.step(2.0, -1)
    record.finished_at.extend([1.0, 2.0])
    return Measurement(row(arm, number, throughput_tok_s=speed, **changed), record, {}, {}, [])


def rounds(*speeds: float, first: int = 0, seed: int = 1) -> list[Measurement]:
    """Returns rounds with Seer at these tokens per second and the baseline at 100."""
    return [
        rolled(arm, number, speed, seed=seed)
        for number, ours in enumerate(speeds, first)
        for arm, speed in (("group_round_robin", 100.0), ("seer", ours))
    ]


def chosen(some: list[Measurement]) -> tuple[int, int] | None:
    """Seed and round."""
    pair = typical_pair(some)
    if pair is None:
        return None
    assert [one.row.arm for one in pair] == ["group_round_robin", "seer"]
    (key,) = {(one.row.seed, one.row.round) for one in pair}
    return key


@pytest.mark.parametrize(
    ("speeds", "number"),
    [((150.0, 120.0, 300.0), 0), ((300.0, 120.0), 1), ((400.0, 200.0, 300.0, 100.0), 1)],
)
def test_the_round_drawn_is_the_median_one_the_lower_of_two(
    speeds: tuple[float, ...], number: int
) -> None:
    assert chosen(rounds(*speeds)) == (1, number)


def test_a_round_counts_by_its_ratio() -> None:
    some = [
        rolled("group_round_robin", 0, 50.0),
        rolled("seer", 0, 150.0),
        *rounds(200.0, 250.0, first=1),
    ]
    assert chosen(some) == (1, 2), "of 3.0, 2.0 and 2.5"


def test_the_first_seed_that_has_both_arms_is_drawn() -> None:
    alone = [rolled("seer", 0, 500.0, seed=6), rolled("group_round_robin", 1, 100.0, seed=6)]
    assert chosen([*alone, *rounds(200.0, first=2, seed=5), *rounds(300.0, first=3)]) == (5, 2)
    assert chosen(alone) is None
    assert chosen([]) is None


def test_arms_in_reverse_are_as_good() -> None:
    assert chosen(rounds(150.0, 120.0, 300.0)[::-1]) == (1, 0)


def test_the_title_says_what_was_chosen_from_what() -> None:
    pair = typical_pair(rounds(212.0))
    assert pair is not None
    same = "the same 2 requests, the same tokens"
    assert lanes_title(pair, [0]) == f"seed 1, round 0 (x 2.12): {same}"
    assert lanes_title(pair, [0, 2]).startswith(
        "seed 1, round 0 (x 2.12, the lower median of rounds 0 and 2): "
    )
    assert "the median of rounds 0, 2 and 4)" in lanes_title(pair, [0, 2, 4])


def test_other_tokens_are_not_called_the_same() -> None:
    some = [
        rolled("group_round_robin", 0, 100.0),
        rolled("seer", 0, 200.0, identical_share=0.99),
    ]
    pair = typical_pair(some)
    assert pair is not None
    assert lanes_title(pair, [0]).endswith("the same 2 requests")


def test_pictures_are_drawn(tmp_path: Path) -> None:
    draw_lanes(rounds(150.0, 120.0), tmp_path / "lanes.png")
    rows = [one.row for one in rounds(150.0, 120.0)]
    draw_arms({"arms": summarize(rows)}, tmp_path / "arms.png")
    soaked = [soak_row(number, kv_hit_share=None if number else 0.5) for number in range(3)]
    draw_soak(soaked, tmp_path / "soak.png")
    assert {path.name for path in tmp_path.iterdir()} == {"lanes.png", "arms.png", "soak.png"}


def test_bars_are_the_medians_over_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, _: drawn.append(figure))
    speeds = [*rounds(300.0, 320.0, seed=1), *rounds(100.0, first=2, seed=2)]
    draw_arms({"arms": summarize([one.row for one in speeds])}, tmp_path / "arms.png")
    (figure,) = drawn
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [1.0, 3.0], "the baseline, and seer with 3.0, 3.2 and 1.0"


def test_without_a_pair_there_is_no_picture_of_lanes(tmp_path: Path) -> None:
    draw_lanes([rolled("seer", 0, 100.0)], tmp_path / "lanes.png")
    assert not list(tmp_path.iterdir())
