"""What the pages take from the report.json of a benchmark, so that no number is copied by hand.

A block of a page stands between `<!-- from FOLDER: NAME -->` and `<!-- end -->`; BLOCKS has the
names, and `FOLDER+FOLDER` joins the rounds of two runs.
`python -m tools.docs.figures` writes report.md and the pictures of all committed benchmarks.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.full.lanes import Pair, draw_pair
from bench.full.page import full_page
from bench.full.router import KNOWN, MEASURED
from bench.gains import read_rounds
from seer_sgl.benchmark.plots import draw_arms
from seer_sgl.benchmark.summary import by_seed, summarize

from . import benchmark_blocks, setting_blocks
from .tables import Lines, Report, rounds_of

ROOT = Path(__file__).resolve().parents[2]
START = "<!-- from "
BLOCK = re.compile(
    r"(<!-- from (\S+): ([\w-]+) -->\n)(?:(?!<!-- from ).)*?(<!-- end -->)", re.DOTALL
)
BLOCKS: dict[str, Callable[[Report], Lines]] = {
    "headline": benchmark_blocks.headline,
    "headline-single": benchmark_blocks.headline_single,
    "seeds": benchmark_blocks.seeds,
    "gain": benchmark_blocks.gain,
    "tail": benchmark_blocks.tail,
    "work": benchmark_blocks.work,
    "added": benchmark_blocks.added,
    "seeds-median": benchmark_blocks.seeds_median,
    "steps": benchmark_blocks.steps,
    "seeds-by-idle": benchmark_blocks.seeds_by_idle,
    "seeds-all": benchmark_blocks.seeds_all,
    "machine": setting_blocks.machine,
    "noise": setting_blocks.noise,
    "greedy": setting_blocks.greedy,
    "predicted": setting_blocks.predicted,
    "acceptance": setting_blocks.acceptance,
    "soak": setting_blocks.soak,
}


def filled(text: str, root: Path) -> str:
    """Returns the page with the content of all its blocks replaced.

    Raises KeyError for an unknown block, and ValueError for a marker without its counterpart.
    """

    def block(match: re.Match[str]) -> str:
        lines = BLOCKS[match[3]](read(*(root / run for run in match[2].split("+"))))
        return "\n".join([match[1], *lines, "", match[4]])

    page, blocks = BLOCK.subn(block, text)
    if blocks != text.count(START):
        raise ValueError(f"{text.count(START)} blocks begin, {blocks} of them are complete")
    return page


def read(*folders: Path) -> dict[str, Any]:
    """Returns the report of a benchmark: the last one, with the rounds of all.

    `arms` and `seeds` are computed from the rounds again, so that all pages use one definition of
    a gain, also for a report that an earlier version wrote.
    """
    paths = [folder / "report.json" for folder in folders]
    report: dict[str, Any] = json.loads(paths[-1].read_text(encoding="utf-8"))
    rows = read_rounds(*paths)
    figures = {"arms": summarize(rows, KNOWN), "seeds": by_seed(rows, KNOWN)}
    return report | figures | {"rounds": msgspec.to_builtins(rows)}


def result_pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields the path and the text of each committed report.md."""
    for found in sorted((root / "bench" / "results").glob("*/report.json")):
        lanes = found.with_name("lanes.json").exists()
        yield found.with_name("report.md"), full_page(read(found.parent), lanes=lanes)


if __name__ == "__main__":
    for path, page in result_pages(ROOT):
        path.write_text(page, encoding="utf-8")
        draw_arms(rounds_of(read(path.parent)), MEASURED, path.with_name("arms"))
        lanes = path.with_name("lanes.json")
        if lanes.exists():
            draw_pair(msgspec.json.decode(lanes.read_bytes(), type=Pair), path.with_name("lanes"))
