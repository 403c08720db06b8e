"""What the commands print: results, and the log, the progress and an error on standard error."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO, cast

from typing_extensions import override

from .errors import SeerError

if TYPE_CHECKING:  # rich is imported when something is printed
    from rich.console import Console

LEVELS = ("debug", "info", "warning", "error")
INTERRUPTED = 130  # the exit status that a shell reports after Ctrl-C
WIDE = 200  # columns of a table that goes to a file


class _StandardError(io.TextIOBase):
    """Standard error that ignores write errors, such as a closed terminal or a full disk.

    The text of a failed write is lost; the program continues.
    """

    def __init__(self) -> None:
        self._stream = sys.stderr  # kept, because rich replaces sys.stderr during its live display

    @override
    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    @override
    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    @override
    def isatty(self) -> bool:
        return self._stream.isatty()

    @override
    def fileno(self) -> int:
        return self._stream.fileno()


def open_standard_files() -> None:
    """Opens standard input, output and error if the parent closed them (`>&-`), to nowhere.

    A file that is opened later would have their numbers, and receive what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def open_console(wide: bool = False) -> "Console":
    """Returns a console on standard error. `wide`: use WIDE columns if it is not a terminal."""
    from rich.console import Console

    console = Console(file=cast(TextIO, _StandardError()), highlight=False)
    if wide and not console.is_terminal:
        console.width = WIDE
    return console


@contextlib.contextmanager
def flushed_output() -> Iterator[None]:
    """Flushes what the block prints. Ends the process if its reader, such as `head`, has ended."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # As rich does: what is still buffered goes nowhere, and Python flushes it without error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def complain(line: str) -> None:
    """Prints the reason why the program ends."""
    print(f"seer-sgl: {line}", file=_StandardError(), flush=True)


class _ConsoleHandler(logging.Handler):
    """Prints log records as lines, between the refreshes of a live display."""

    def __init__(self, console: "Console") -> None:
        super().__init__()
        self._console = console

    @override
    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno != logging.INFO:
            line = f"{record.levelname.lower()}: {line}"
        self._console.print(line, markup=False, soft_wrap=True)


class _Once(logging.Filter):
    """Passes each distinct line of some loggers once."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names
        self._seen: set[str] = set()

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(self._names):
            return True
        line = record.getMessage()
        is_new = line not in self._seen
        self._seen.add(line)
        return is_new


@contextlib.contextmanager
def log_to(console: "Console", level: str, once: tuple[str, ...] = ()) -> Iterator[None]:
    """Prints seer-sgl's log from `level` (LEVELS) on while the block runs.

    `once`: names of loggers that may repeat lines; each distinct line is printed once. An error
    that ends the block is logged with all its causes at level debug.
    """
    logger, before = logging.getLogger(__package__), logging.getLogger(__package__).level
    handler = _ConsoleHandler(console)
    handler.addFilter(_Once(once))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    except SeerError:
        logger.debug("the command ends with an error", exc_info=True)
        raise
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
