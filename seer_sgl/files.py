"""Lines in a file, each of them there as a whole or not at all, whatever the disk does."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import RolloutError


def append_whole(file: io.FileIO, line: bytes) -> None:
    """Write a line at the end of a file. Raises OSError; then the file is what it was."""
    size = file.seek(0, os.SEEK_END)
    rest = memoryview(line)
    try:
        while rest:  # a disk that fills up takes a part first and refuses what is left
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(size)
        raise


class LineFile:
    """Appends lines to a file, each at once: who is killed loses none that was written.

    An earlier file is replaced when the first line is written, or at `close`. Raises OSError; the
    file then ends with the last whole line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None

    def append(self, line: bytes) -> None:
        """Write a line, its newline included."""
        append_whole(self._opened(), line)

    def close(self) -> None:
        """End the file; it is empty if nothing was written."""
        self._opened().close()

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = io.FileIO(self.path, "w")
        return self._file


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the disk about `path` into a RolloutError of one line."""
    try:
        yield
    except OSError as error:
        raise RolloutError(f"{path}: {error.strerror or error}") from error
