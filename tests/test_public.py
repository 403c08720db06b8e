"""The public names: each can be imported, is documented, and is known to a type checker."""

import ast
import inspect
from pathlib import Path

import pytest

import seer_sgl


@pytest.mark.parametrize("name", seer_sgl.__all__)
def test_a_public_name_has_a_docstring(name: str) -> None:
    value = getattr(seer_sgl, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)


def test_a_type_checker_knows_the_names_that_are_imported_on_first_use() -> None:
    tree = ast.parse(Path(seer_sgl.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.name for node in imports for alias in node.names) == seer_sgl.__all__


def test_another_name_is_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Scheduler'"):
        _ = seer_sgl.Scheduler
