"""Helpers that several tests share are in tests/support, or in a module of their folder."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def imported(node: ast.AST) -> Iterator[str]:
    """Yields all that a statement may import as modules; what it imports from is among it."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)


def of_tests(source: str) -> list[str]:
    """Returns the modules of tests that a module imports."""
    names = (name for node in ast.walk(ast.parse(source)) for name in imported(node))
    return [name for name in names if name.rpartition(".")[2].startswith("test_")]


def test_each_form_of_import_is_found() -> None:
    forms = "from tests.x.test_y import a; from tests.x import test_y; from . import test_y"
    assert of_tests(forms) == ["tests.x.test_y", "tests.x.test_y", ".test_y"]
    assert of_tests("import tests.x.test_y as y") == ["tests.x.test_y"]


def test_no_module_imports_from_a_module_of_tests() -> None:
    found = {}
    for folder in ("tests", "integrations"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if names := of_tests(file.read_text(encoding="utf-8")):
                found[str(file.relative_to(ROOT))] = names
    assert found == {}
