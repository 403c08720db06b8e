"""A folder on an SSD that goes with its owner, even if the owner is killed outright.

The owner and its store nodes hold a lock on a file in the folder; Linux releases it when the last
of them has ended. A folder whose lock nobody holds is removed by the next one to make its own.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PREFIX = "seer-sgl-ssd-"
LOCK = "owner.lock"


@contextlib.contextmanager
def ssd_folder(parent: Path) -> Iterator[Path]:
    """A folder of this process in `parent`, removed at the end; before, those of the dead are.

    Raises OSError where it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(parent):
        _remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = hold(folder)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> IO[bytes]:
    """Keep `folder` until this process ends, or the lock that is returned is closed."""
    lock = (folder / LOCK).open("ab")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


@contextlib.contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Nobody else makes or removes folders: one without a lock yet would count as abandoned."""
    directory = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        if _is_held(lock):
            continue
        shutil.rmtree(lock.parent, ignore_errors=True)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or another user's
        return True
    return False
