"""Files: what is written whole or not at all, and what a file may begin with."""

import codecs
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import ConfigError, RolloutError

SAMPLES = "samples.jsonl"  # of a rollout, in its folder


def append_whole(file: io.FileIO, content: bytes) -> None:
    """Writes bytes at the end of a file. Raises OSError; then the file is unchanged."""
    size = file.seek(0, os.SEEK_END)
    rest = memoryview(content)
    try:
        while rest:  # a disk that becomes full accepts only a part, and the next write fails
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(size)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file. Raises OSError; then an earlier file is unchanged.

    A reader finds the earlier file or the new one, also if the process is killed meanwhile.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(content)
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Writes a value as indented JSON, whole. Raises RolloutError; an earlier file stays then."""
    with explained(path):
        write_whole(path, json.dumps(value, indent=2).encode() + b"\n")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not empty, with their numbers. Raises OSError.

    The mark that some editors write at the start of UTF-8 is skipped.
    """
    with path.open("rb") as file:
        if file.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def refuse_pipe(path: Path) -> None:
    """Raises ConfigError for a pipe, where a file is read more than once: its begin would be
    missing the second time."""
    if path.is_fifo():
        raise ConfigError(f"{path}: a pipe, which can be read only once; write it to a file first")


class FileReserve:
    """Open descriptors that keep room for files that are opened later, when sockets may have taken
    all others. Raises OSError."""

    def __init__(self, count: int) -> None:
        self._held: list[int] = []
        for _ in range(count):
            self._held.append(os.open(os.devnull, os.O_RDONLY))

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Makes room for the files."""
        while self._held:
            os.close(self._held.pop())


class LineFile:
    """Appends lines to a file without buffering: a killed process loses no written line.

    The first line, or `close`, replaces an earlier file. Raises OSError; the file then ends with
    the last whole line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reserve = FileReserve(1)
        self._file: io.FileIO | None = None

    def append(self, line: bytes) -> None:
        """Writes a line, which includes its newline."""
        append_whole(self._opened(), line)

    def close(self) -> None:
        """Closes the file; it is empty if no line was written."""
        self._opened().close()

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._reserve.release()
            self._file = io.FileIO(self.path, "w")
        return self._file


def make_out_folder(out: Path) -> None:
    """Makes the folder of `--out`. Raises ConfigError, also if it takes no files."""
    with using_out(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass


def out_has(out: Path, name: str) -> bool:
    """Returns whether the folder of `--out` has a file. Raises ConfigError if it cannot be read."""
    with using_out(out):
        return (out / name).exists()


def refuse_rollout(out: Path) -> None:
    """Raises ConfigError if the folder of `--out` has a rollout, whose report would be replaced."""
    if out_has(out, SAMPLES):
        raise ConfigError(f"--out {out}: the folder has a rollout; use another folder")


@contextlib.contextmanager
def using_out(out: Path) -> Iterator[None]:
    """Turns an OSError about the folder of `--out` into a ConfigError of one line."""
    try:
        yield
    except OSError as error:  # no permission, say, or a name that is too long
        raise ConfigError(f"--out {out}: {error.strerror}") from error


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError about `path` into a RolloutError of one line."""
    try:
        yield
    except OSError as error:
        raise RolloutError(f"{path}: {error.strerror or error}") from error
