"""The three packages of Mooncake, one for each CUDA, and the client library they all bring.

They install the same files under the same import name, `mooncake`: only one may be there.
"""

import ctypes
import importlib
import importlib.metadata
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

VERSION = "0.3.13.post1"
# The major version of CUDA that a package is linked to (libcudart); None: it needs none.
BUILT_FOR: dict[str, int | None] = {
    "mooncake-transfer-engine-cuda13": 13,
    "mooncake-transfer-engine": 12,
    "mooncake-transfer-engine-non-cuda": None,
}
CUDA_RUNTIME = "nvidia-cuda-runtime"  # the package with torch's libcudart


def version(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Mooncake's installed packages and their versions; more than one is a mistake."""
    versions = {name: version(name) for name in BUILT_FOR}
    return {name: found for name, found in versions.items() if found is not None}


def fitting(cuda: int | None) -> str:
    """The package for torch's major version of CUDA (None: a CPU build).

    For a CUDA that Mooncake is not built for: the package that needs none.
    """
    by_cuda = {built_for: name for name, built_for in BUILT_FOR.items()}
    return by_cuda.get(cuda, by_cuda[None])


def mismatch(names: Collection[str], cuda: int | None) -> str | None:
    """What is wrong with these packages beside a torch of that CUDA; None if nothing is."""
    if len(names) > 1:
        return f"{len(names)} packages installed over each other; only one may be there"
    (name,) = names
    if name == fitting(cuda):
        return None
    return f"it is built for {_cuda(BUILT_FOR[name])}, torch for {_cuda(cuda)}"


def _cuda(major: int | None) -> str:
    return "no CUDA" if major is None else f"CUDA {major}"


def load_store() -> Any:
    """The module `mooncake.store`. Raises ImportError or OSError if a library of it is missing.

    The libcudart that came as a package is in no folder where the linker looks. In a process that
    has imported torch it is there already; the driver and store nodes do without torch.
    """
    for library in _packaged_cudart():
        ctypes.CDLL(str(library))
    return importlib.import_module("mooncake.store")


def _packaged_cudart() -> Iterator[Path]:
    try:
        files = importlib.metadata.files(CUDA_RUNTIME) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libcudart.so."):
            yield Path(str(file.locate()))
