"""Runs the Python code of a page."""

import ast
import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from .blocks import Script, scripts

LANDING = "README.md#from-python"
ROLLOUT = "python.md#rollout"
TRAJECTORIES = "python.md#trajectories"
TRAINING = "python.md#training-loop"
DRIVER = "python.md#driver"
OBSERVERS = "python.md#observers"
FLEET = "python.md#fleet"
IDENTITY = "exactness.md#what-does-identity-need"
FILES = "getting-started.md#what-the-command-writes"
# Code that needs servers, which runs in tests/e2e/test_docs.py.
ON_SERVERS = {LANDING, ROLLOUT, TRAJECTORIES, TRAINING, DRIVER, OBSERVERS, FLEET, IDENTITY, FILES}


def script(name: str) -> Script:
    """Returns the code of that name. Raises KeyError if no page has it."""
    return {each.name: each for each in scripts()}[name]


def run(name: str, context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Runs the code of that name with the names of `context` and returns all of its names. The code
    may await at its top level."""
    code = compile(script(name).code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "of_a_page", **(context or {})}
    awaited = eval(code, names)
    if inspect.iscoroutine(awaited):
        asyncio.run(awaited)
    return names
