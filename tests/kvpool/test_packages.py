"""The Mooncake package for each CUDA version, and the search for its libraries."""

import ctypes
import importlib
import sys
from pathlib import Path

import pytest

from seer_sgl.kvpool import packages


def test_the_libcudart_that_came_as_a_package_is_loaded_before_mooncake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mooncake for CUDA is linked to it, and the linker does not find it."""
    about = tmp_path / "nvidia_cuda_runtime-13.0.96.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 1\n"
    )
    files = ("include/cuda.h", "lib/libcudart.so.13", "lib/libcudart_static.a")
    (about / "RECORD").write_text("".join(f"nvidia/cu13/{name},,\n" for name in files))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    steps: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", steps.append)
    monkeypatch.setattr(importlib, "import_module", steps.append)
    packages.load_store()
    assert steps == [str(tmp_path / "nvidia/cu13/lib/libcudart.so.13"), "mooncake.store"]
