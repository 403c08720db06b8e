"""Helpers that several tests share are in tests/support, or in a module of their folder."""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_module_imports_from_a_module_of_tests() -> None:
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                name = node.module
                if name.rpartition(".")[2].startswith("test_"):
                    found.append(f"{file.relative_to(TESTS)}: {name}")
    assert found == []
