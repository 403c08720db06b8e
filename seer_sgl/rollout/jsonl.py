"""Reads a JSONL file that a config key names. Errors name the key, the file and the line."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from seer_sgl.config import plain
from seer_sgl.errors import ConfigError
from seer_sgl.files import numbered_lines

T = TypeVar("T")


def read_jsonl(
    path: Path, source: str, decoder: msgspec.json.Decoder[T], what: str
) -> Iterator[tuple[str, T]]:
    """Yields each record with its place, for error messages.

    `source`: the config key that names the file; `what`: the content of its lines. Raises
    ConfigError if the file is empty or a line is invalid.
    """
    empty = True
    try:
        for number, line in numbered_lines(path):
            place = f"{source}: {path}:{number}"
            yield place, decoded(line, place, decoder)
            empty = False
    except OSError as error:
        raise ConfigError(f"{source}: {path}: {error.strerror}") from error
    if empty:
        raise ConfigError(f"{source}: {path}: no {what}")


def decoded(content: bytes, place: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns a JSON value of a file. Raises ConfigError, which names its `place`."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {plain(str(error))}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:  # not UTF-8, or a number with 5,000 digits
        raise ConfigError(f"{place}: not JSON") from error
