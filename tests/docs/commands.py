"""The command lines of the pages: in bash blocks, and inline code that begins with a program."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .blocks import HEREDOC, PAGES, blocks
from .links import CODE, FENCE

PROGRAMS = ("seer-sgl", "make", "python", ".venv/bin/python", "pytest", "bench/gpu/run.sh")
ASSIGNMENT = re.compile(r"[A-Z_]+=")
SEPARATORS = {"|", ">", "&&", ";"}


@dataclass(frozen=True)
class Command:
    """One command of a page. `words`: the program and its arguments. A name such as
    `seer-sgl engine` in a sentence is a command, too."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def commands() -> list[Command]:
    """Returns the commands of all pages, each once per page."""
    found = [Command(page.name, words) for page in PAGES for words in _of(page) if words]
    return list(dict.fromkeys(found))


def _of(page: Path) -> Iterator[tuple[str, ...]]:
    for block in blocks(page):
        if block.language == "bash":
            script = HEREDOC.sub("", block.code).replace("\\\n", " ")
            for line in script.splitlines():
                yield from _split(line)
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for code in CODE.findall(text):
        if code[1:-1].startswith(tuple(f"{program} " for program in PROGRAMS)):
            yield from _split(code[1:-1])


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """Yields the commands of a line, without assignments before them and the files after `>`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    words: list[str] = []
    into_file = False
    for word in [*lexer, ";"]:
        if word in SEPARATORS:
            yield tuple(words)
            words = []
            into_file = word == ">"
        elif into_file:
            into_file = False
        elif words or not ASSIGNMENT.match(word):
            words.append(word)
