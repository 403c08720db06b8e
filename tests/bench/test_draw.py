"""The pictures take their numbers from the report, and are drawn the same every time."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import pytest
from PIL import Image

from bench.draw import draw_all
from bench.draw_results import draw_gain
from bench.gains import (
    ARMS_REPORT,
    SEEDS_REPORTS,
    Box,
    SeedGain,
    place_labels,
    read_rounds,
    seed_gains,
    steps,
)
from seer_sgl.benchmark.measure import Row
from seer_sgl.report.style import OURS, PNG_PIXELS, idle_to_full, save, styled_figure
from tests.support.rows import row as full_row

NAMES = ("architecture", "chunk", "waterfall", "gain", "learning", "what-if")


def row(arm: str, seed: int, number: int, wall_s: float, idle: list[float] | None = None) -> Row:
    return full_row(arm, number, seed=seed, wall_s=wall_s, idle=idle)


# Seed 1 in rounds 0 and 2, seed 2 in round 1.
ROUNDS = [
    row("group_round_robin", 1, 0, 60.0, [0.5, 0.0]),
    row("request_round_robin", 1, 0, 40.0),
    row("seer", 1, 0, 20.0),
    row("group_round_robin", 2, 1, 30.0, [0.0, 0.8]),
    row("request_round_robin", 2, 1, 24.0),
    row("seer", 2, 1, 12.0),
    row("group_round_robin", 1, 2, 50.0, [0.1, 0.0]),
    row("request_round_robin", 1, 2, 50.0),
    row("seer", 1, 2, 40.0),
]


def test_the_median_is_over_all_rounds_of_all_seeds() -> None:
    assert [(step.arm.name, step.median) for step in steps(ROUNDS)] == [
        ("group_round_robin", 1.0),
        ("request_round_robin", 1.25),
        ("seer", 2.5),
    ], "divided, kv_pool and context were not measured"


def test_the_gain_and_the_idle_share_of_a_seed_are_the_medians_of_its_rounds() -> None:
    third = [
        row("group_round_robin", 2, 3, 60.0, [0.5, 0.5]),
        row("request_round_robin", 2, 3, 36.0),
        row("seer", 2, 3, 12.0),
        row("group_round_robin", 2, 4, 12.0, [0.0, 0.0]),
        row("request_round_robin", 2, 4, 12.0),
        row("seer", 2, 4, 12.0),
    ]
    assert seed_gains([*ROUNDS, *third]) == [
        SeedGain(2, 0.4, over_pinned=2.5, over_single=2.0),
        SeedGain(1, 0.15, over_pinned=2.125, over_single=1.625),
    ], "the seed that idles longest comes first"


def test_a_seed_without_a_round_of_seer_has_no_gain() -> None:
    assert [gain.seed for gain in seed_gains(ROUNDS[:3] + ROUNDS[3:5])] == [1]


def test_rounds_are_read_from_a_report_that_has_more(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    rows: list[dict[str, Any]] = [
        msgspec.to_builtins(row("seer", 1, 0, 2.5, [0.5])) | {"later": 1.0},
        msgspec.to_builtins(row("router", 1, 0, 3)),
    ]
    path.write_text(json.dumps({"arms": {}, "rounds": rows}))
    assert read_rounds(path) == [row("seer", 1, 0, 2.5, [0.5]), row("router", 1, 0, 3.0)]


def test_the_rounds_of_two_runs_are_numbered_on(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"rounds": msgspec.to_builtins(ROUNDS)}))
    joined = read_rounds(path, path)
    assert joined[: len(ROUNDS)] == ROUNDS
    assert len({(one.arm, one.round) for one in joined}) == 2 * len(ROUNDS)


def test_a_label_stands_where_it_covers_nothing() -> None:
    points = [(0.0, 0.0), (0.0, 0.0), (500.0, 0.0)]
    obstacles = [Box(505.0, -5.0, 520.0, 5.0)]
    right, left, other_left = place_labels(points, [30.0] * 3, obstacles, height=12.0)
    assert right == (10.0, -6.0)
    assert left == (-40.0, -6.0)
    assert other_left == (460.0, -6.0)


def test_a_label_stands_farther_away_where_all_places_beside_its_point_are_taken() -> None:
    around = [Box(-15.0, -15.0, 15.0, 15.0)]
    assert place_labels([(0.0, 0.0)], [30.0], around, height=12.0) == [(20.0, -6.0)]
    everywhere = [Box(-99.0, -99.0, 99.0, 99.0)]
    assert place_labels([(0.0, 0.0)], [30.0], everywhere, height=12.0) == [(10.0, -6.0)]


@pytest.mark.parametrize(
    ("rounds", "each"),
    [
        (ROUNDS[:6], "2 seeds, 1 round per seed; two"),
        (ROUNDS, "2 seeds, 1 to 2 rounds per seed; two"),
        (
            [
                msgspec.structs.replace(one, round=3 * n + one.round)
                for one in ROUNDS
                for n in range(3)
            ],
            "2 seeds, 3 to 6 rounds per seed; two",
        ),
    ],
)
def test_the_picture_of_gains_counts_the_rounds(
    tmp_path: Path, rounds: list[Row], each: str
) -> None:
    svg, _ = draw_gain(rounds, tmp_path / "gain")
    found = "\n".join(words(svg))
    assert each in found
    assert ("Large dots: medians." in found) == (len(rounds) > 6)


@pytest.mark.process
def test_every_picture_is_written_as_svg_and_png_with_the_numbers_of_the_reports(
    tmp_path: Path,
) -> None:
    written = {path.name: path for path in draw_all(tmp_path / "pictures")}
    assert set(written) == {f"{name}.{suffix}" for name in NAMES for suffix in ("svg", "png")}
    for name in NAMES:
        assert "<svg" in written[f"{name}.svg"].read_text()[:1000]
        with Image.open(written[f"{name}.png"]) as picture:
            assert abs(picture.width - PNG_PIXELS) <= 1
        assert written[f"{name}.png"].stat().st_size < 150_000
    bars, dots = words(written["waterfall.svg"]), words(written["gain.svg"])
    assert bars >= {f"{step.median:.2f}" for step in steps(read_rounds(ARMS_REPORT))}
    for gain in seed_gains(read_rounds(*SEEDS_REPORTS)):
        assert any(word.endswith(f"{gain.seed}: {gain.over_pinned:.2f}") for word in dots)


def words(svg: Path) -> set[str]:
    """The texts in an SVG: matplotlib draws type as paths, each with its text in a comment."""
    return set(re.findall(r"<!-- (.*?) -->", svg.read_text()))


def test_the_same_figure_gives_the_same_bytes_and_leaves_matplotlib_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    for name in "ab":
        with styled_figure(4, 3) as figure:
            figure.subplots().bar([1, 2], [3, 4], color=OURS)
            save(figure, tmp_path / name)
    for suffix in ("svg", "png"):
        first, second = (tmp_path / f"{name}.{suffix}" for name in "ab")
        assert first.read_bytes() == second.read_bytes()
    assert dict(mpl.rcParams) == before


def test_the_busier_an_engine_the_darker_its_cell() -> None:
    shades = [sum(idle_to_full()(share)[:3]) for share in (0.0, 0.3, 0.6, 1.0)]
    assert shades[0] < 3.0, "white is left for an idle engine"
    assert all(lighter > darker for lighter, darker in pairwise(shades))
