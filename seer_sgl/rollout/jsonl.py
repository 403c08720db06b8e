"""Records of a JSONL file that a config key names; complaints give key, file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from seer_sgl.config import plain
from seer_sgl.errors import ConfigError

T = TypeVar("T")


def read_jsonl(
    path: Path, source: str, decoder: msgspec.json.Decoder[T], what: str
) -> Iterator[tuple[str, T]]:
    """The records, each with its place for complaints. `source`: what named the file; `what`: what
    its lines hold.

    Raises ConfigError for a file without any, or at a line that is none.
    """
    empty = True
    try:
        with path.open("rb") as lines:
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
    except (msgspec.DecodeError, ValueError) as error:  # no UTF-8, or a number of 5,000 digits
        raise ConfigError(f"{place}: not JSON") from error
