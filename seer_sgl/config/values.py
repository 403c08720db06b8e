"""Checks that apply to every value of the tree, independent of its key."""

import math
import re
from collections.abc import Iterator
from typing import Any

Problem = tuple[str, str]  # key path, problem
TOKEN = "a token has printable ASCII characters only"  # SGLang compares no others
USERINFO = re.compile(r"""://[^/?#\s"'<>,{}]*@""")
# Masked in reports (masking.py), or the user's own patterns.
FREE_TEXT = ("engines.environment", "sampling")


def invalid_values(tree: Any, key: str = "") -> Iterator[Problem]:
    """Yields complaints about a tree of plain values: numbers that are not finite, and text that
    cannot be encoded or that contains a password."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from invalid_values(name, key)
            yield from invalid_values(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from invalid_values(value, f"{key}[{number}]")
    elif isinstance(tree, float) and not math.isfinite(tree):
        yield key, "must be finite"
    elif isinstance(tree, str):
        if not is_text(tree):
            yield key, "text with a NUL character or half a surrogate pair"
        if USERINFO.search(tree) and not key.startswith(FREE_TEXT):
            yield key, "a URL with a user name or password, which would end up in logs"


def is_token(text: str) -> bool:
    """Returns whether HTTP carries a bearer token: the file of a secret may end with a newline."""
    return text.isascii() and text.isprintable()


def is_text(text: str) -> bool:
    """Returns whether files, sockets and command lines can carry a string."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
