"""`python -m tests.e2e.ready CHANGES MODULE ARGUMENT...` runs a module with changed ready configs.

CHANGES: a JSON list of config overrides.
"""

import json
import runpy
import sys
from collections.abc import Sequence

import seer_sgl
from seer_sgl.config import Config, load_ready

changes, module, *arguments = sys.argv[1:]


def changed(name: str, overrides: Sequence[str] = ()) -> Config:
    """Returns a ready config with the changes."""
    return load_ready(name, [*overrides, *json.loads(changes)])


setattr(seer_sgl, "load_ready", changed)  # noqa: B010 (a module's function)
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__")
