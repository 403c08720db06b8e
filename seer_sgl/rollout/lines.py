"""A file of lines, each of them there as a whole or not at all, whatever the disk does."""

import io
from pathlib import Path


class LineFile:
    """Appends lines to a file, each at once: who is killed loses none that was written.

    An earlier file is replaced when the first line is written, or at `close`. Raises OSError; the
    file then ends with the last whole line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._size = 0  # bytes of whole lines

    def append(self, line: bytes) -> None:
        """Write a line, its newline included."""
        file = self._opened()
        rest = memoryview(line)
        try:
            while rest:  # a disk that fills up takes a part first and refuses the rest
                rest = rest[file.write(rest) :]
        except OSError:
            file.seek(self._size)
            file.truncate()
            raise
        self._size += len(line)

    def close(self) -> None:
        """End the file; it is empty if nothing was written."""
        self._opened().close()

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = io.FileIO(self.path, "w")
        return self._file
