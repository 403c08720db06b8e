"""The folder of a journal: its lock, and its file."""

import contextlib
import fcntl
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from seer_sgl.errors import JournalError, JournalInUse
from seer_sgl.files import append_whole

from .blocks import FIRST_LINE, Tail, make_block
from .records import Header, encode

FILE, NEW, LOCK = "journal", "journal.new", "lock"


class JournalFolder:
    """A journal's folder, locked by this process until `close` or until the process ends.

    Raises JournalError if the folder cannot be used, or if a living process has it.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.name = f"journal {path}"
        self.file = path / FILE
        with self.explained():
            if create:
                path.mkdir(parents=True, exist_ok=True)
            elif not self.file.is_file():
                raise JournalError(f"{self.name}: no journal is there")
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take_lock()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, header: Header) -> tuple[io.FileIO, Tail]:
        """Replaces the file by one with a header, which is on disk then. Raises JournalError."""
        block, tail = make_block([encode(header)], Tail(len(FIRST_LINE), 0, 0))
        fresh = self.path / NEW
        with self.explained():
            file = io.FileIO(fresh, "w")
            try:
                append_whole(file, FIRST_LINE + block)
                os.fsync(file.fileno())
                fresh.rename(self.file)
                self._sync()
            except BaseException:
                file.close()
                fresh.unlink(missing_ok=True)
                raise
        return file, tail

    def resume(self, tail: Tail) -> io.FileIO:
        """Returns the file, open for appending at `tail`; what is behind is cut.

        Raises JournalError.
        """
        with self.explained():
            file = io.FileIO(self.file, "r+")
            try:
                file.truncate(tail.position)
                file.seek(0, os.SEEK_END)
                os.fsync(file.fileno())
            except BaseException:
                file.close()
                raise
        return file

    def remove(self) -> None:
        """Removes the folder and releases the lock. Raises JournalError if it has other files."""
        try:
            with self.explained():
                for name in (FILE, NEW, LOCK):
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()
        finally:
            self.close()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns an OSError into a JournalError of one line."""
        try:
            yield
        except OSError as error:
            raise JournalError(f"{self.name}: {error.strerror or error}") from error

    def _take_lock(self) -> None:
        """Locks the folder. The system ends the lock with the process, so none is left behind."""
        with self.explained():
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                pid = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
                owner = f"process {pid}" if pid.isdigit() else "another process"
                raise JournalInUse(f"{self.name}: {owner} is using it") from error
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _sync(self) -> None:
        """Syncs the folder: the name of a new file is on disk too."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
