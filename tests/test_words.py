"""The words of code, messages and pages: the field's, and one thing per name."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [
    *(ROOT / "seer_sgl").rglob("*.py"),
    *(ROOT / "seer_sgl").rglob("*.js"),
    *(ROOT / "seer_sgl").rglob("*.html"),
    *(ROOT / "integrations").rglob("*.py"),
    *(ROOT / "integrations").rglob("*.md"),
    *(ROOT / "bench").rglob("*.py"),
    *(path for path in (ROOT / "bench").rglob("*.md") if "results" not in path.parts),
    *(ROOT / "tools").rglob("*.py"),
    *(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "configs").rglob("*.yaml"),
]
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
# By pattern: what to say instead, in code and on pages.
BANNED = {
    r"\b(became|becomes) of\b": "the state of",
    r"\bgone on with\b": "resumed",
    r"\b[Ll]ikewise\b": "what it means, again",
    r"\b[Ss]tart(s|ed|ing)[ _]again\b|\bstart_again\b": "restarted",
    r"\b([Gg]o|[Gg]oes|[Ww]ent|[Gg]one) on\b|_(go|goes|went|gone)_on(\b|_)": "continues",
    r"\bkeep_house\b": "housekeep",
    r'"unusual"': "the name of the field",
    r"\b[Ff]orwarded (request|call|chunk)": "passthrough",
    r"^This page answers": "the answer",
    r"\bdispatched since\b": "not dispatched for ... s",
    r"[Cc]alm": "undisturbed, or expected",
    r"\b(would|could|then) ends? (an|the|its) engine\b|\bends? an engine\b": "crashes, kills",
    r"\bSGLang (would|could) end\b": "crashes",
}
# The same for code alone; the title of a figure is in its picture too.
BANNED_IN_CODE = {
    r"\b[Bb]rings\b(?! \{gain)|\bbrought\b": "returns, gains, contains",
    r"(?<!long )\bas (it is|they are)(?=[.,:;)]|$)": "unmodified, unchanged or passthrough",
}


@pytest.mark.parametrize("pattern", BANNED | BANNED_IN_CODE)
def test_no_text_has_a_banned_word(pattern: str) -> None:
    banned = re.compile(pattern)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (*CODE, *(PAGES if pattern in BANNED else ()))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(line)
    ]
    assert not found, f"say {(BANNED | BANNED_IN_CODE)[pattern]!r}: {found}"


# What several rooms have, each its own: the part that its file's name says.
PARTS = {
    *("__init__", "command", "config", "routes", "tables", "plots", "errors", "checks"),
    *("messages", "answers", "backend", "bodies", "calls", "client", "counts", "drafting"),
    *("engine", "engines", "groups", "hicache", "hub", "kv_waits", "lengths", "memory"),
    *("monitor", "opening", "policy", "progress", "reading", "ready", "samples"),
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
    twice = {name for name, paths in files.items() if len(paths) > 1}
    assert not twice - PARTS, "a name for each file, or a part that rooms have in common"
    assert not PARTS - twice, "no room has a second one any more"
