"""Real trainings: runs a command, and reads the figures of its steps."""

import ast
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from reasoner import grpo

STEP = re.compile(r"Global step (\d+): (\{.*\})")  # in OpenRLHF's log


def ended(command: Sequence[str]) -> tuple[int, str]:
    """Runs a training; returns its exit status and its output."""
    done = subprocess.run(
        command,
        cwd=grpo.ROOT,
        env={**os.environ, **grpo.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def completed(command: Sequence[str]) -> str:
    """Runs a training that must succeed; returns its output."""
    status, output = ended(command)
    assert status == 0, output[-3000:]
    return output


def steps_of(output: str) -> dict[int, dict[str, Any]]:
    """Returns the figures of every step; the sample's text at their end is left out."""
    return {int(step): ast.literal_eval(text) for step, text in STEP.findall(output)}
