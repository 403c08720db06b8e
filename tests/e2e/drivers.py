"""Drivers that `seer-sgl rollout` started, and the samples that they have written."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Driver = subprocess.Popen[str]
Start = Callable[..., Driver]


def samples_in(out: Path) -> list[dict[str, Any]]:
    """Returns the samples in OUT, once its driver has ended: each line must be whole."""
    path = out / "samples.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
