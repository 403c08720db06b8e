"""Detects grammars that crash the engine that compiles them. Pure.

SGLang's scheduler process compiles grammars with xgrammar, which follows the groups of a pattern in
a JSON schema, and the references between its parts, by recursion without a limit. With more than
100,000 groups in each other, or about as many references of which each leads to the next, the stack
of its thread (64 MB in SGLang) overflows, and the process ends.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

REFERENCE = "$ref"
MOST_GROUPS = 1000  # in each other: xgrammar's limit in other grammars
# Different references, times the levels of objects and lists: no path through a schema is longer.
MOST_LEVELS = 50_000


def grammar_risk(text: str) -> str | None:
    """Returns why no engine should compile a JSON schema or structural tag; None if it may."""
    try:
        return schema_risk(json.loads(text))
    except (ValueError, RecursionError):
        return None  # SGLang refuses it


def schema_risk(schema: Any) -> str | None:
    """Returns the same for a decoded value that has JSON schemas in it."""
    references, levels = set[str](), 0
    for name, text, level in _texts(schema):
        levels = max(levels, level)
        if name == REFERENCE:
            references.add(text)
        elif text.count("(") > MOST_GROUPS and _groups(text) > MOST_GROUPS:
            return f"more than {MOST_GROUPS} groups in each other"
    if len(references) * levels > MOST_LEVELS:
        return f"{len(references)} references at {levels} levels; {MOST_LEVELS} in all is the limit"
    return None


def _texts(value: Any) -> Iterator[tuple[str | None, str, int]]:
    """Yields each text of a decoded value, names included: the name that its object has for it, the
    text, and the number of objects and lists around it."""
    left: list[tuple[str | None, Any, int]] = [(None, value, 0)]
    while left:
        name, one, level = left.pop()
        if isinstance(one, str):
            yield name, one, level
        elif isinstance(one, dict):
            for key, member in one.items():
                left += ((None, key, level + 1), (key, member, level + 1))
        elif isinstance(one, list):
            left += ((None, entry, level + 1) for entry in one)


def _groups(pattern: str) -> int:
    """Returns about how many groups a pattern has in each other, at most."""
    codes = np.frombuffer(pattern.encode(errors="replace"), np.uint8)
    steps = (codes == ord("(")).astype(np.int8) - (codes == ord(")"))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
