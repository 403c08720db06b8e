"""The lines of `rollout --compare` that the pages show, compared with what the command prints."""

import re
from collections.abc import Sequence

from tools.docs.pages import ROOT

from .blocks import blocks

STARTED = ROOT / "docs" / "getting-started.md"
TABLE = "### What the command prints"
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
VARIABLE = re.compile(r"(\.\.\.|\d[\d.]*|\b[A-Z]\b)")


def shown() -> list[str]:
    """Returns the lines of getting-started.md, and the last lines on the landing page."""
    section = STARTED.read_text(encoding="utf-8").partition(TABLE)[2].partition("\n#")[0]
    landing = [
        line
        for block in blocks(ROOT / "README.md")
        if block.language == "text"
        for line in block.code.splitlines()
    ]
    return [*ROW.findall(section), *landing]


def not_printed(log: Sequence[str]) -> list[str]:
    """Returns the shown lines that no line of a log is like. Numbers and single capital letters
    stand for what differs, and dots for the rest of a line."""
    return [
        line for line in shown() if not any(_pattern(line).fullmatch(each.strip()) for each in log)
    ]


def _pattern(line: str) -> re.Pattern[str]:
    def part(text: str) -> str:
        if text == "...":
            return ".*"
        return r"\S+" if VARIABLE.fullmatch(text) else re.escape(text)

    return re.compile("".join(map(part, VARIABLE.split(line))))
