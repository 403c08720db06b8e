"""Reads a trace from any file that is known, by its content.

| file | module |
|---|---|
| CSV, by its name; `samples.jsonl` of seer-sgl, plain JSON lines | plain_files.py |
| JSON lines of veRL, NeMo-RL and tpu-inference | rl_lines.py |
| inference-perf's requests, slime's trace timeline | json_files.py |
| slime's and miles' debug rollout data | slime_dump.py |
"""

from pathlib import Path

import msgspec

from seer_sgl.errors import ConfigError
from seer_sgl.files import numbered_lines, refuse_pipe

from . import json_files, plain_files, rl_lines, slime_dump
from .rl_lines import Count
from .trace import Imported, Trace, grouped

SOURCE = "--trace"
GZIP = b"\x1f\x8b"  # how such a file begins (RFC 1952)


def read_trace(
    path: Path, *, source: str = SOURCE, group_size: int | None = None, count: Count | None = None
) -> Trace:
    """Returns the trace in a file. `source`: the option that names it.

    `group_size`: responses in a row that are a group, where the file has no groups; `count`:
    returns the tokens of a text, where the file has texts only. Raises ConfigError with file and
    line.
    """
    try:
        return grouped(path.name, _imported(path, source, count), group_size)
    except OSError as error:
        raise ConfigError(f"{source}: {path}: {error.strerror}") from error


def _imported(path: Path, source: str, count: Count | None) -> Imported:
    refuse_pipe(path)
    with path.open("rb") as file:
        if file.read(len(GZIP)) == GZIP:
            raise ConfigError(f"{source}: {path}: compressed with gzip; gunzip it first")
    if path.suffix.lower() == ".csv":
        return plain_files.read_csv(path, source)
    if slime_dump.is_dump(path):
        return slime_dump.responses_of(path, source)
    first = _first_line(path)
    if first.startswith(b"["):
        return json_files.read_requests(path, source)
    keys = _keys(first)
    if {"cache_version", "rows"} <= keys:
        return json_files.read_timeline(path, source)
    reader = rl_lines.reader_of(keys)
    return reader(path, source, count) if reader else plain_files.read_lines(path, source)


def _first_line(path: Path) -> bytes:
    return next((line.strip() for _, line in numbered_lines(path)), b"")


def _keys(line: bytes) -> set[str]:
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return set()  # the reader of plain lines names the line
