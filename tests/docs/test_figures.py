"""The parts of pages that are made from a benchmark's report."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from bench.gains import ARMS_REPORT, PAPER_GAIN, PAPER_IDLE, SEEDS_REPORTS, read_rounds, seed_gains
from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.summary import ratios
from tests.support.rows import row
from tools.docs import benchmark_blocks as arms
from tools.docs.figures import BLOCK, BLOCKS, ROOT, filled, read, result_pages
from tools.docs.tables import gains, percent, rounds_of, spread, tail_cuts

MAIN = ARMS_REPORT.parent
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def report() -> dict[str, Any]:
    """Returns three rounds, with gains of 2, 3 and 1 and tail cuts of 90 %, 50 % and -20 %."""
    rounds = []
    for number, (speed, tail) in enumerate([(200.0, 1.0), (300.0, 5.0), (100.0, 12.0)]):
        rounds += [
            row("group_round_robin", number, throughput_tok_s=100.0, tail_s=10.0),
            row("request_round_robin", number, throughput_tok_s=speed / 2, tail_s=8.0),
            row("seer", number, throughput_tok_s=speed, tail_s=tail),
        ]
    paper = {"throughput": 2.04, "tail": 0.053}
    papers = {"group_round_robin": None, "request_round_robin": None, "seer": paper}
    arms = {arm: {"paper": each} for arm, each in papers.items()}
    return {"rounds": msgspec.to_builtins(rounds), "arms": arms}


def cells(lines: list[str]) -> list[list[str]]:
    """Returns the rows below the head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


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


def test_an_arm_without_rounds_is_left_out_of_the_tables_of_seeds() -> None:
    over = [line[0] for line in cells(list(arms.seeds_median(report())))]
    assert over == ["gain over `group_round_robin`", "gain over `request_round_robin`", "tail cut"]
    assert "seer_published" not in next(arms.seeds_all(report()))
    measured = [line[0] for line in cells(list(arms.steps(report())))]
    assert measured == ["`group_round_robin`", "`request_round_robin`", "**`seer`**"]


def test_a_seed_has_one_line_with_the_medians_of_its_rounds() -> None:
    (line,) = cells(list(arms.seeds_all(report())))
    assert line == ["1", "20 %", "800", "10.0 s", "10.0 s", "1.00", "2.00", "2.00", "50 %"]


def test_a_block_is_filled_from_the_report_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text(json.dumps(report()))
    page = "before\n\n<!-- from run: headline -->\nold\n<!-- end -->\nafter\n"
    made = filled(page, tmp_path)
    begin, end = (
        "before\n\n<!-- from run: headline -->\n\n|  | throughput: median",
        "\n\n<!-- end -->\nafter\n",
    )
    assert made.startswith(begin)
    assert made.endswith(end)
    assert "old" not in made
    assert filled(made, tmp_path) == made


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


def test_every_block_stands_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {match[3] for page in pages for match in BLOCK.finditer(page.read_text("utf-8"))}
    assert named == set(BLOCKS)


def test_committed_reports_are_current() -> None:
    for path, page in result_pages(ROOT):
        current = path.read_text(encoding="utf-8") == page
        assert current, f"{path}: `python -m tools.docs.figures` writes it"


def test_single_requests_are_the_best_of_plain_sglang() -> None:
    rows = rounds_of(read(MAIN))
    plain = ("router", "group_least_loaded", "request_round_robin")
    assert max(plain, key=lambda arm: median(gains(rows, arm))) == "request_round_robin"


@pytest.mark.parametrize("runs", [[path.parent for path in SEEDS_REPORTS], [MAIN]])
def test_the_price_of_a_step_with_drafts_is_that_of_the_rounds(runs: list[Path]) -> None:
    rows = rounds_of(read(*runs))
    cpu, steps = (ratios(rows, SEER, BASELINE, name) for name in ("engine_cpu_s", "forward_steps"))
    price = spread([cpu[number] / steps[number] for number in cpu])
    assert price in (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_tail_of_the_paper_s_order_is_that_of_its_run() -> None:
    rows = rounds_of(read(MAIN.parent / "2026-11-25-cpu-seeds"))
    cut = spread(tail_cuts(rows, "seer_published"), percent)
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    assert f"Its tail cut there is {cut}" in page


def test_the_seeds_that_idle_as_much_as_the_paper_are_counted_right() -> None:
    gained = [
        gain.over_pinned
        for gain in seed_gains(read_rounds(*SEEDS_REPORTS))
        if gain.idle >= PAPER_IDLE
    ]
    reached, every = NUMBERS[sum(gain >= PAPER_GAIN for gain in gained)], NUMBERS[len(gained)]
    claim = f"all {every} seeds reach" if reached == every else f"{reached} of {every} seeds reach"
    assert claim in (ROOT / "README.md").read_text(encoding="utf-8"), "medians of their rounds"
