"""The parts of pages that are made from a benchmark's report."""

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import pytest

from bench.gains import PAPER_GAIN, PAPER_IDLE
from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.summary import ratios
from tests.support.rows import row
from tools.docs import benchmark_blocks as arms
from tools.docs import setting_blocks as settings
from tools.docs.figures import BLOCKS, ROOT, filled, read, result_pages
from tools.docs.tables import gains, percent, rounds_of, spread, table

MAIN = ROOT / "bench" / "results" / "2026-11-21-cpu"


def pair(number: int, seed: int, speed: float, tail: float, idle: float) -> list[dict[str, Any]]:
    """Returns a round: the baseline with 100 tokens per second and a tail of 10 s, and seer."""
    base = row(
        "group_round_robin",
        number,
        seed=seed,
        throughput_tok_s=100.0,
        wall_s=20.0,
        tail_s=10.0,
        idle=[0.0, 2 * idle],
        prefilled_tokens=1000,
    )
    single = row(
        "request_round_robin", number, seed=seed, throughput_tok_s=speed / 2, wall_s=9.0, tail_s=8.0
    )
    seer = row(
        "seer",
        number,
        seed=seed,
        throughput_tok_s=speed,
        wall_s=8.0 + number,
        tail_s=tail,
        accept_length=2.0 + number,
        prefilled_tokens=250,
        forward_steps=350,
    )
    built: list[dict[str, Any]] = msgspec.to_builtins([base, single, seer])
    return built


def report() -> dict[str, Any]:
    """Returns three rounds, with gains of 2, 3 and 1 and tail cuts of 90 %, 50 % and -20 %."""
    rounds = [
        *pair(0, 5, 200.0, 1.0, 0.4),
        *pair(1, 5, 300.0, 5.0, 0.2),
        *pair(2, 4, 100.0, 12.0, 0),
    ]
    paper = {"throughput": 2.04, "tail": 0.053}
    papers = {"group_round_robin": None, "request_round_robin": None, "seer": paper}
    return {"rounds": rounds, "arms": {arm: {"paper": each} for arm, each in papers.items()}}


def cells(lines: list[str]) -> list[list[str]]:
    """Returns the rows below the head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_gain_is_the_ratio_within_a_round_and_its_median_is_over_all_rounds() -> None:
    rows = rounds_of(report())
    assert gains(rows, "seer") == [2.0, 3.0, 1.0]
    assert spread(gains(rows, "seer")) == "2.00 (1.00 to 3.00)"
    assert gains(rows, "seer", "request_round_robin") == [2.0, 2.0, 2.0]


def test_the_headline_has_its_own_head() -> None:
    head, rule, *_ = lines = list(arms.headline(report()))
    assert head == "|  | throughput: median (least to greatest) | tail cut |"
    assert rule == "| --- | --- | --- |"
    assert [line[1:] for line in cells(lines)] == [
        ["1.00", ""],
        ["1.00 (0.50 to 1.50)", "20 % (20 % to 20 %)"],
        ["**2.00 (1.00 to 3.00)**", "**50 % (-20 % to 90 %)**"],
        ["2.04", "95 %"],
    ]


def test_gain_and_tail_by_seed() -> None:
    *_, seer = cells(list(arms.gain(report())))
    assert seer == ["**`seer`**", "2.00, 3.00", "1.00", "**2.00 (1.00 to 3.00)**", "2.04"]
    base, _, seer = cells(list(arms.tail(report())))
    assert base == ["`group_round_robin`", "10.0 s", "10.0 s", "", ""]
    assert seer == ["**`seer`**", "3.0 s", "12.0 s", "**50 % (-20 % to 90 %)**", "95 %"]


def test_the_baseline_on_each_seed() -> None:
    assert cells(list(arms.seeds(report()))) == [
        ["5", "30 %", "800", "20.0 s", "10.0 s"],
        ["4", "0 %", "800", "20.0 s", "10.0 s"],
    ]


def test_work_has_a_median_per_seed() -> None:
    *_, seer = cells(list(arms.work(report())))
    assert seer == ["**`seer`**", "3 / 3", "250 / 250", "350 / 350"]


def test_seeds_are_listed_by_idle_share() -> None:
    assert cells(list(arms.seeds_all(report()))) == [
        ["5", "30 %", "800", "20.0 s", "1.25", "2.50", "2.00", "70 %"],
        ["4", "0 %", "800", "20.0 s", "0.50", "1.00", "2.00", "-20 %"],
    ]
    assert cells(list(arms.seeds_by_idle(report()))) == [
        ["30 % and more", "5", "2.50 (2.50 to 2.50)"],
        ["below 10 %", "4", "1.00 (1.00 to 1.00)"],
    ]
    assert [line[1] for line in cells(list(arms.seeds_median(report())))] == [
        "2.00 (1.00 to 3.00)",
        "2.00 (2.00 to 2.00)",
        "50 % (-20 % to 90 %)",
    ]


def test_accepted_tokens_beside_the_model() -> None:
    model = {"references": [0, 3], "accept_length": [1.5, 2.25]}
    lines = list(settings.acceptance(report() | {"config": {"bench": {"speculation": model}}}))
    assert lines[0].endswith("| model with 0 finished siblings | 3 |")
    assert cells(lines) == [["tokens per verified step", "3.00", "1.50", "2.25"]]


def test_predictions_beside_measurements() -> None:
    arm = {"wall_s": 10.0, "predicted_wall_s": 7.5, "error": -0.25}
    tails = {"tail_s": 2.0, "predicted_tail_s": 1.96}
    lines = list(settings.predicted({"predicted": {"arms": {"seer": arm | tails}}}))
    assert cells(lines) == [["`seer`", "10.0 s", "7.5 s", "-25 %", "2.0 s", "2.0 s"]]


def test_cells() -> None:
    assert (percent(0.945), percent(-0.001), percent(0.9904, 1)) == ("94 %", "0 %", "99.0 %")
    assert list(table(["a", "b"], [[1, "x"]])) == ["| a | b |", "| --- | --- |", "| 1 | x |"]


def test_a_block_is_filled_from_the_report_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text(json.dumps(report()))
    page = "before\n\n<!-- from run: seeds-median -->\nold\n<!-- end -->\nafter\n"
    made = filled(page, tmp_path)
    begin, end = (
        "before\n\n<!-- from run: seeds-median -->\n\n| `seer` |",
        "\n\n<!-- end -->\nafter\n",
    )
    assert made.startswith(begin)
    assert made.endswith(end)
    assert "old" not in made
    assert filled(made, tmp_path) == made


def test_an_unknown_block_fails(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report()))
    with pytest.raises(KeyError, match="gian"):
        filled("<!-- from .: gian -->\n<!-- end -->", tmp_path)


@pytest.mark.parametrize(
    "page",
    [
        "<!-- from .: gain -->\n",
        "<!-- from .: gain -->\n<!-- from .: gain -->\n<!-- end -->",
        "<!-- from .: gain--> \n<!-- end -->",
    ],
)
def test_a_marker_without_its_counterpart_fails(tmp_path: Path, page: str) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report()))
    with pytest.raises(ValueError, match="blocks begin"):
        filled(page, tmp_path)


def test_every_block_can_be_made_from_a_committed_report() -> None:
    committed = read(MAIN)
    for block in BLOCKS.values():
        assert list(block(committed))


def test_committed_reports_are_current() -> None:
    for path, page in result_pages(ROOT):
        current = path.read_text(encoding="utf-8") == page
        assert current, f"{path}: `python -m tools.docs.figures` writes it"


def test_single_requests_are_the_best_of_plain_sglang() -> None:
    rows = rounds_of(read(MAIN))
    plain = ("router", "group_least_loaded", "request_round_robin")
    assert max(plain, key=lambda arm: median(gains(rows, arm))) == "request_round_robin"


def test_the_rollouts_that_idle_as_much_as_the_papers_are_counted_right() -> None:
    gained = []
    for name in ("2026-11-21-cpu", "2026-11-21-cpu-seeds"):
        rows = rounds_of(read(ROOT / "bench" / "results" / name))
        found = ratios(rows, SEER, BASELINE)
        gained += [
            found[row.round]
            for row in rows
            if row.arm == BASELINE and row.idle and fmean(row.idle) >= PAPER_IDLE
        ]
    reached = sum(gain >= PAPER_GAIN for gain in gained)
    assert (reached, len(gained)) == (4, 5), "README: four of five rollouts"
    assert "four of five rollouts" in (ROOT / "README.md").read_text(encoding="utf-8")
