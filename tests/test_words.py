"""The words of code, messages and pages: the field's, not a private vocabulary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = [
    *(ROOT / "seer_sgl").rglob("*.py"),
    *(ROOT / "seer_sgl").rglob("*.js"),
    *(ROOT / "integrations").rglob("*.py"),
    *(ROOT / "bench").rglob("*.py"),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]
# By pattern: what to say instead.
BANNED = {
    r"\b(became|becomes) of\b": "the state of",
    r"\bgone on with\b": "resumed",
    r'"""Likewise\.?"""|# [Ll]ikewise\.?$': "what it means, again",
    r"\bcalm run\b": "fault-free run",
    r"\b[Ss]tart(s|ed|ing) again\b": "restarted",
    r"\b([Gg]o|[Gg]oes|[Ww]ent|[Gg]one) on\b": "continues",
    r"; likewise `": "the same for",
    r"\bkeep_house\b": "housekeep",
    r'"unusual"': "the name of the field",
    r"\b[Ff]orwarded (request|call|chunk)": "passthrough",
    r"\bdispatched since\b": "not dispatched for ... s",
}


@pytest.mark.parametrize("pattern", BANNED)
def test_no_text_has_a_banned_word(pattern: str) -> None:
    banned = re.compile(pattern)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(line)
    ]
    assert not found, f"say {BANNED[pattern]!r}: {found}"
