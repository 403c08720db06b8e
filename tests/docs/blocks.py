"""The fenced blocks of a markdown page, and the Python in them."""

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.docs.pages import ROOT

from .links import HEADING, slug

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "bench" / "gpu" / "README.md",
]
FENCE = re.compile(r"( *)```(\w*)")
HEREDOC = re.compile(r"^python3 - (.*) <<'END'\n(.*?\n)END$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. `place`: its page and the anchor of its heading, such as `python.md#driver`;
    `line`: the number of its first line."""

    place: str
    line: int
    language: str
    code: str


@dataclass(frozen=True)
class Script:
    """Python code of a page. `name`: the place of its block, with a number from the second block
    of a heading on. `arguments`: those of a here-document on a command line."""

    name: str
    code: str
    arguments: Sequence[str] = ()


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced blocks of a page. Raises ValueError if one has no end."""
    anchor = ""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    for number, line in lines:
        if heading := HEADING.match(line):
            anchor = slug(heading[1])
        if fence := FENCE.match(line):
            indent, language = fence.groups()
            code: list[str] = []
            for _, inside in lines:
                if inside == f"{indent}```":
                    break
                code.append(inside)
            else:
                raise ValueError(f"{page.name}:{number}: a block has no end")
            text = textwrap.dedent("\n".join(code)) + "\n"
            yield Block(f"{page.name}#{anchor}", number + 1, language, text)


def scripts() -> list[Script]:
    """Returns all Python code of the pages: of Python blocks, and of here-documents."""
    found: list[Script] = []
    times: Counter[str] = Counter()
    for block in (block for page in PAGES for block in blocks(page)):
        parts: list[tuple[str, list[str]]] = []
        if block.language == "python":
            parts = [(block.code, [])]
        elif block.language == "bash":
            parts = [(code, shlex.split(words)) for words, code in HEREDOC.findall(block.code)]
        for code, arguments in parts:
            times[block.place] += 1
            number = times[block.place]
            name = block.place if number == 1 else f"{block.place}-{number}"
            found.append(Script(name, code, arguments))
    return found
