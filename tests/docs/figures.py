"""Blocks of a page that are made from a benchmark's report.json.

A block stands between `<!-- from FOLDER: NAME -->` and `<!-- end -->`; BLOCKS has the names.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]
BLOCK = re.compile(r"(<!-- from (\S+): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SINGLE = "request_round_robin"


def filled(text: str, root: Path) -> str:
    """Returns the page with all its blocks made anew. Raises KeyError for an unknown block."""

    def block(match: re.Match[str]) -> str:
        report = json.loads((root / match[2] / "report.json").read_text(encoding="utf-8"))
        return match[1] + "\n".join(BLOCKS[match[3]](report)) + "\n" + match[4]

    return BLOCK.sub(block, text)


def ratios(report: Report, arm: str, over: str) -> list[float]:
    """Returns the arm's throughput over another's, of each round with both: the one definition of
    a gain. All arms of a round have the same tokens, so it is the ratio of their times."""
    times = {(row["round"], row["arm"]): row["wall_s"] for row in report["rounds"]}
    rounds = sorted({row["round"] for row in report["rounds"]})
    return [
        times[number, over] / times[number, arm]
        for number in rounds
        if (number, over) in times and (number, arm) in times
    ]


def spread(values: list[float]) -> str:
    """Returns the median and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


BLOCKS: dict[str, Callable[[Report], Iterator[str]]] = {}
