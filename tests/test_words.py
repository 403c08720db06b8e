"""The words of code, messages and pages: the field's, and one thing per name."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = [
    *(ROOT / "seer_sgl").rglob("*.py"),
    *(ROOT / "seer_sgl").rglob("*.js"),
    *(ROOT / "seer_sgl").rglob("*.html"),
    *(ROOT / "integrations").rglob("*.py"),
    *(ROOT / "integrations").rglob("*.md"),
    *(ROOT / "bench").rglob("*.py"),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "configs").rglob("*.yaml"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]
# By pattern: what to say instead.
BANNED = {
    r"\b(became|becomes) of\b": "the state of",
    r"\bgone on with\b": "resumed",
    r"\b[Ll]ikewise\b": "what it means, again",
    r"\bcalm run\b": "fault-free run",
    r"\b[Ss]tart(s|ed|ing)[ _]again\b|\bstart_again\b": "restarted",
    r"\b([Gg]o|[Gg]oes|[Ww]ent|[Gg]one) on\b": "continues",
    r"\bkeep_house\b": "housekeep",
    r'"unusual"': "the name of the field",
    r"\b[Ff]orwarded (request|call|chunk)": "passthrough",
    r"^This page answers": "the answer",
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


# What several rooms have, each its own: the part that its file's name says.
PARTS = {
    *("__init__", "command", "config", "routes", "tables", "plots", "errors", "checks"),
    *("messages", "answers", "backend", "bodies", "calls", "client", "counts", "drafting"),
    *("engine", "engines", "groups", "hicache", "hub", "kv_waits", "lengths", "memory"),
    *("monitor", "opening", "outcome", "policy", "progress", "reading", "ready", "samples"),
    *("server", "session", "state", "steps", "supervisor", "tokenizer", "tree", "weights"),
    "sampling",
}


def test_no_second_public_class_of_one_name_and_no_second_file_but_parts_of_rooms() -> None:
    classes, files = defaultdict(list), defaultdict(list)
    for path in sorted((ROOT / "seer_sgl").rglob("*.py")):
        files[path.stem].append(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path)
    assert not {name: paths for name, paths in classes.items() if len(paths) > 1}
    assert {name for name, paths in files.items() if len(paths) > 1} <= PARTS
