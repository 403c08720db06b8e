"""Shared memory that killed processes leave behind: Linux keeps it until its name is removed.

Only what the processes themselves had mapped is removed, and of that only the kinds that are made
for one run of a program: a model or a pool of files that somebody keeps there stays.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")
KINDS = (
    "sem.mp-",  # Python's multiprocessing: locks,
    "psm_",  # and blocks
    "torch_",  # torch's shared tensors
    "sglang_loads_",  # what SGLang's processes report to each other of their load,
    "sgl_shm_",  # and of images
    "nccl-",  # NCCL's between the ranks of a machine
)


def mapped_by(processes: Iterable[psutil.Process]) -> set[Path]:
    """The names of shared memory that these processes use now."""
    files = {file for process in processes for file in _mapped_files(process.pid)}
    return {path for path in _names() if _inode(path) in files}


def remove(names: Iterable[Path]) -> None:
    """Remove the names; nobody uses what they stand for."""
    for name in names:
        name.unlink(missing_ok=True)


def _names() -> Iterable[Path]:
    if not FOLDER.is_dir():
        return []
    return [path for path in FOLDER.iterdir() if path.name.startswith(KINDS)]


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:  # its owner has removed it meanwhile
        return None


def _mapped_files(pid: int) -> set[int]:
    """Inodes: a semaphore is renamed once it is mapped, and the map has its first name."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended
        return set()
    # address, permissions, offset, device, inode, path
    return {int(line.split()[4]) for line in lines if f" {FOLDER}{os.sep}" in line}
