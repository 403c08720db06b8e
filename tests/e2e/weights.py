"""Random and other weights for the engines of tests."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import MODEL, ROOT

EDGE_BYTES = 1 << 16


def add_weights(folder: Path) -> Path:
    """Writes random weights for the `config.json` of a folder, and returns the folder."""
    command = [sys.executable, "-m", "tests.tokenizers.weights", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def scale(folder: Path, factor: float, part: str = "") -> None:
    """Multiplies the weights whose names have this part."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if part in name:
            weights[name] *= factor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def other_weights(folder: Path, factor: float = 1.5) -> Path:
    """Writes the reasoner with one layer times a factor: the file keeps its size and both its ends.

    With a large factor, rounding changes log probabilities more than with the model's own weights.
    """
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    scale(folder, factor, ".layers.1.")
    was, now = ((path / "model.safetensors").read_bytes() for path in (MODEL, folder))
    assert len(was) == len(now)
    assert (was[:EDGE_BYTES], was[-EDGE_BYTES:]) == (now[:EDGE_BYTES], now[-EDGE_BYTES:])
    return folder
