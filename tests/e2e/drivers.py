"""Drivers that `seer-sgl rollout` started, and the samples that they have written so far."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Driver = subprocess.Popen[str]
Start = Callable[..., Driver]


def samples_in(out: Path) -> list[dict[str, Any]]:
    """Returns the samples in OUT so far, without a line that is being written."""
    path = out / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
