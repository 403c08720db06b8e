"""Reads a trace from any file that is known, by its content.

| file | module |
|---|---|
| `samples.jsonl` of seer-sgl, plain JSON lines, CSV | plain_files.py |
"""

from pathlib import Path

from seer_sgl.errors import ConfigError

from . import plain_files
from .trace import Imported, Trace, grouped

SOURCE = "--trace"


def read_trace(path: Path, *, source: str = SOURCE, group_size: int | None = None) -> Trace:
    """Returns the trace in a file. `source`: the option that names it.

    `group_size`: responses in a row that are a group, where the file has no groups. Raises
    ConfigError with file and line.
    """
    try:
        return grouped(path.name, _imported(path, source), group_size)
    except OSError as error:
        raise ConfigError(f"{source}: {path}: {error.strerror}") from error


def _imported(path: Path, source: str) -> Imported:
    if path.suffix.lower() == ".csv":
        return plain_files.read_csv(path, source)
    return plain_files.read_lines(path, source)
