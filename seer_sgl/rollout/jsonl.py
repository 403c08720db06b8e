"""Reads a JSONL file that a config key names. Errors name the key, the file and the line."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from seer_sgl.config import plain
from seer_sgl.errors import ConfigError
from seer_sgl.files import skip_byte_order_mark

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
        with path.open("rb") as lines:
            skip_byte_order_mark(lines)
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{source}: {path}:{number}"
                    yield place, _record(line, place, decoder)
                    empty = False
    except OSError as error:
        raise ConfigError(f"{source}: {path}: {error.strerror}") from error
    if empty:
        raise ConfigError(f"{source}: {path}: no {what}")


def _record(line: bytes, place: str, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {plain(str(error))}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:  # not UTF-8, or a number with 5,000 digits
        raise ConfigError(f"{place}: not JSON") from error
