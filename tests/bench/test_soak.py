"""The soak's figures for memory, KV hits and drift."""

from pathlib import Path

import pytest

from bench.full.soak import draw_soak, drift, kv_hit_share
from seer_sgl.report.recorder import Recorder
from tests.support.rows import soak_row


def test_a_leak_of_a_megabyte_a_rollout_is_told_and_the_warm_up_is_not() -> None:
    engines = [15000.0, 19000.0, *(20000.0 + step for step in range(8))]
    rows = [soak_row(number, engines_mb=mb) for number, mb in enumerate(engines)]
    assert drift(rows) == {
        "wall_s": 0.0,
        "driver_mb": 0.0,
        "engines_mb": 1.0,
        "others_mb": 0.0,
        "kv_hit_share": 0.0,
    }


def test_drift_is_the_slope_of_all_warm_rollouts() -> None:
    walls = [99.0, 99.0, 20.0, 26.0, 20.0, 26.0]
    rows = [soak_row(number, wall_s=wall) for number, wall in enumerate(walls)]
    assert drift(rows)["wall_s"] == pytest.approx(1.2)


def test_fewer_than_four_rollouts_tell_no_drift() -> None:
    assert drift([soak_row(number) for number in range(3)]) == {}
    assert drift([soak_row(number) for number in range(4)])


def test_a_figure_that_a_rollout_lacks_has_no_drift() -> None:
    rows = [soak_row(number, kv_hit_share=None if number == 4 else 0.9) for number in range(6)]
    assert "kv_hit_share" not in drift(rows)


def test_the_hit_share_is_that_of_continuations() -> None:
    record = Recorder("r", 1, [], [], started_at=0.0)
    assert kv_hit_share(record) is None
    record.totals.recomputed, record.totals.reused = 10, 90
    assert kv_hit_share(record) == 0.9


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    soaked = [soak_row(number, kv_hit_share=None if number else 0.5) for number in range(3)]
    draw_soak(soaked, tmp_path / "soak")
    assert {path.name for path in tmp_path.iterdir()} == {"soak.png", "soak.svg"}
