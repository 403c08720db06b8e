"""Other weights for the engines of tests."""

import shutil
from pathlib import Path

from tests.e2e.conftest import MODEL

EDGE_BYTES = 1 << 16


def other_weights(folder: Path, factor: float = 1.5) -> Path:
    """Writes the reasoner with one layer times a factor: the file keeps its size and both its ends.

    With a large factor, rounding changes log probabilities more than with the model's own weights.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if ".layers.1." in name:
            weights[name] *= factor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    was, now = ((path / "model.safetensors").read_bytes() for path in (MODEL, folder))
    assert len(was) == len(now)
    assert (was[:EDGE_BYTES], was[-EDGE_BYTES:]) == (now[:EDGE_BYTES], now[-EDGE_BYTES:])
    return folder
