"""Real trainings: runs a command, and reads the figures of its steps."""

import ast
import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reasoner import grpo

STEP = re.compile(r"Global step (\d+): (\{.*\})")  # in OpenRLHF's log


class Training:
    """A command that runs beside a test, and its output so far.

    It runs in ROOT with the variables of a real run, or in `folder` with others.
    """

    def __init__(self, command: Sequence[str], folder: Path = grpo.ROOT, **variables: str) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(variables or grpo.environment())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_for(self, pattern: str) -> str:
        """Returns the first group of a pattern once it is in the output."""
        while (found := re.search(pattern, self.output)) is None:
            assert self.process.poll() is None, self.output[-3000:]
            time.sleep(0.1)
        return found[1]

    def end(self) -> int:
        """Returns the exit status, once all of the output is there."""
        status = self.process.wait()
        self._reader.join()
        return status


def ended(command: Sequence[str]) -> tuple[int, str]:
    """Runs a training; returns its exit status and its output."""
    training = Training(command)
    return training.end(), training.output


def completed(command: Sequence[str]) -> str:
    """Runs a training that must succeed; returns its output."""
    status, output = ended(command)
    assert status == 0, output[-3000:]
    return output


def steps_of(output: str) -> dict[int, dict[str, Any]]:
    """Returns the figures of every step; the sample's text at their end is left out."""
    return {int(step): ast.literal_eval(text) for step, text in STEP.findall(output)}
