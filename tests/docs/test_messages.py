"""The messages that failure.md explains are messages of the program."""

import ast
import errno
import os
import re
from collections.abc import Iterator

from tools.docs.pages import ROOT

TABLES = ("## What you see at the start", "## What you see during a rollout")
ROW = re.compile(r"^\| (`.*?) \|", re.MULTILINE)
MESSAGE = re.compile(r"`([^`]+)`")
# Dots, capitals, numbers and some names stand for what differs; a colon may begin a value.
VARIABLE = re.compile(
    r"\.\.\.|\b[A-Z_]+\b|-?\b[a-z]*\d+[a-z]*\b|/?[a-z]+_[a-z]+"
    r"|[():;',] ?|--[a-z-]+|draft hub|the engines"
)


def explained() -> Iterator[str]:
    page = (ROOT / "docs" / "failure.md").read_text(encoding="utf-8")
    for title in TABLES:
        table = page.partition(title)[2].partition("\n#")[0]
        for cell in ROW.findall(table):
            yield from MESSAGE.findall(cell)


def phrases(message: str) -> list[str]:
    """Returns the parts of two or more words that are the same in every such message."""
    parts = (part.strip(" .") for part in VARIABLE.split(message))
    return [part for part in parts if " " in part]


def texts() -> Iterator[str]:
    """Yields the strings of the program, and the system's own errors."""
    yield from map(os.strerror, errno.errorcode)
    for file in (ROOT / "seer_sgl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.JoinedStr(values=values):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "\0"
                        for part in values
                    )
                case ast.Constant(value=str(text)):
                    yield text


def test_messages_that_a_page_explains_exist() -> None:
    known = "\n".join(texts())
    found = [phrase for message in explained() for phrase in phrases(message)]
    assert len(found) > 40
    assert [phrase for phrase in found if phrase not in known] == []
