"""A temporary folder for KV on a disk, which is removed even if its owner is killed.

The owner holds a lock on a file in the folder. Linux releases the lock when the owner ends. The
next owner removes all folders whose lock is free.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "seer-sgl-kv-"
LOCK = "owner.lock"


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yields a folder of this process in `parent`, removed at the end of the block.

    Folders of ended processes are removed first. Raises OSError if the folder cannot be created.
    """
    with _alone_in(parent):
        _remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = (folder / LOCK).open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        try:
            yield folder
        finally:
            _remove(folder)


@contextlib.contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Keeps other processes from removing a new folder before it has its lock."""
    directory = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        if not _is_held(lock):
            _remove(lock.parent)


def _remove(folder: Path) -> None:
    """Removes a folder, its lock last: the next owner finds what a killed removal has left."""
    for path in folder.glob("*"):
        if path.name != LOCK:
            with contextlib.suppress(OSError):  # a folder goes with the rest
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or owned by another user
        return True
    return False
