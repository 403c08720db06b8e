"""Removes shared memory of killed processes, which Linux keeps until its name is removed.

Only segments that the processes themselves had mapped are removed, and only the kinds that belong
to one run of a program. Other files there, such as a model or a KV pool, stay.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")
KINDS = (
    "sem.mp-",  # locks of Python's multiprocessing
    "psm_",  # memory blocks of Python's multiprocessing
    "torch_",  # torch's shared tensors
    "sglang_loads_",  # load reports between SGLang's processes
    "sgl_shm_",  # images passed between SGLang's processes
    "nccl-",  # NCCL's buffers between the ranks of a machine
)


def mapped_by(processes: Iterable[psutil.Process]) -> set[Path]:
    """Returns the paths of the shared memory that these processes currently map."""
    files = {file for process in processes for file in _mapped_files(process.pid)}
    return {path for path in _names() if _inode(path) in files}


def remove(names: Iterable[Path]) -> None:
    """Removes shared memory that no process uses any more."""
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
    """Returns the inodes that a process maps in FOLDER.

    Inodes, because a semaphore is renamed after it is mapped, and the map keeps its first name.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:  # the process has ended
        return set()
    # address, permissions, offset, device, inode, path
    return {int(line.split()[4]) for line in lines if f" {FOLDER}{os.sep}" in line}
