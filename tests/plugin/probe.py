"""Runs test programs against SGLang's own code, each in a process of its own.

The CPU engine's switches must be set before SGLang is imported.
"""

import json
import subprocess
import sys
from typing import Any

from seer_sgl.engine.launch.process import engine_environment


def run_probe(*arguments: str) -> Any:
    """Runs Python with `arguments`. Returns the JSON in its last line; None without output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env=engine_environment(1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else None
