"""The three packages of Mooncake, one per CUDA version, and the client library that they contain.

They install the same files under the same import name, `mooncake`: only one may be installed.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

VERSION = "0.3.13.post1"
# The major version of CUDA that a package is linked to (libcudart); None: no CUDA.
BUILT_FOR: dict[str, int | None] = {
    "mooncake-transfer-engine-cuda13": 13,
    "mooncake-transfer-engine": 12,
    "mooncake-transfer-engine-non-cuda": None,
}
CUDA_RUNTIME = "nvidia-cuda-runtime"  # the package with torch's libcudart


def version(distribution: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Returns Mooncake's installed packages and their versions; more than one is an error."""
    versions = {name: version(name) for name in BUILT_FOR}
    return {name: number for name, number in versions.items() if number is not None}


def fitting(cuda: int | None) -> str:
    """Returns the package for torch's major version of CUDA (None: a CPU build).

    For a CUDA version without a package, it is the package without CUDA.
    """
    by_cuda = {built_for: name for name, built_for in BUILT_FOR.items()}
    return by_cuda.get(cuda, by_cuda[None])


def mismatch(names: Collection[str], cuda: int | None) -> str | None:
    """Returns the problem of these packages beside a torch of that CUDA; None if they fit."""
    if len(names) > 1:
        return f"{len(names)} packages installed over each other; only one may be there"
    (name,) = names
    if name == fitting(cuda):
        return None
    return f"it is built for {_cuda(BUILT_FOR[name])}, torch for {_cuda(cuda)}"


def _cuda(major: int | None) -> str:
    return "no CUDA" if major is None else f"CUDA {major}"


def load_store() -> Any:
    """Returns the module `mooncake.store`. Raises ImportError or OSError if a library is missing.

    The linker does not find the libcudart of a Python package, so it is loaded first. Importing
    torch loads it too, but the driver and store nodes do not import torch.
    """
    for library in _packaged_cudart():
        ctypes.CDLL(str(library))
    return importlib.import_module("mooncake.store")


def load_problem() -> str | None:
    """Returns the reason why Mooncake's client library cannot be used; None if it loads."""
    if importlib.util.find_spec("mooncake") is None:
        return "mooncake is not installed"
    try:
        load_store()
    except (ImportError, OSError) as error:
        return f"mooncake cannot be loaded: {error}"
    return None


def _packaged_cudart() -> Iterator[Path]:
    try:
        files = importlib.metadata.files(CUDA_RUNTIME) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libcudart.so."):
            yield Path(str(file.locate()))
