"""The links and headings of a markdown page."""

import re
from collections.abc import Iterator
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    """Yields the targets of a page's links, outside of code."""
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    for match in LINK.finditer(text):
        yield match[1] or match[2]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as code hosts and mkdocs derive them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in HEADING.findall(text)}


def slug(heading: str) -> str:
    """Returns the anchor of a heading."""
    words = re.sub(r"[^\w\s-]", "", heading.lower())
    return re.sub(r"\s+", "-", words.strip())
