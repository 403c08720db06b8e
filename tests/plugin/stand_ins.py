"""Modules in the place of SGLang's, so that a test of a hook imports none of it."""

import sys
from types import ModuleType
from typing import Any

import pytest


def replace_module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Puts a module with these members in the place of `name`."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
