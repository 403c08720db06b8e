"""Other weights for the engines of tests."""

import shutil
from pathlib import Path

from tests.e2e.conftest import MODEL

EDGE_BYTES = 1 << 16


def other_weights(folder: Path) -> Path:
    """Writes the reasoner with one changed layer: the file keeps its size and both its ends."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if ".layers.1." in name:
            weights[name] *= 1.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    was, now = ((path / "model.safetensors").read_bytes() for path in (MODEL, folder))
    assert len(was) == len(now)
    assert (was[:EDGE_BYTES], was[-EDGE_BYTES:]) == (now[:EDGE_BYTES], now[-EDGE_BYTES:])
    return folder
