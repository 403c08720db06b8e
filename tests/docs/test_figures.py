"""The parts of pages that are made from a benchmark's report."""

from pathlib import Path
from statistics import median

import pytest

from bench.gains import ARMS_REPORT, PAPER_GAIN, PAPER_IDLE, SEEDS_REPORTS, read_rounds, seed_gains
from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.summary import ratios
from tools.docs.figures import BLOCK, BLOCKS, ROOT, filled, read, result_pages
from tools.docs.tables import gains, percent, rounds_of, spread, tail_cuts

MAIN = ARMS_REPORT.parent
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


@pytest.mark.parametrize(
    "page",
    [
        "<!-- from .: gain -->\n",
        "<!-- from .: gain -->\n<!-- from .: gain -->\n<!-- end -->",
        "<!-- from .: gain--> \n<!-- end -->",
    ],
)
def test_a_marker_without_its_counterpart_fails(page: str) -> None:
    with pytest.raises(ValueError, match="blocks begin"):
        filled(page, MAIN)


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
