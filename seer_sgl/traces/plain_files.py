"""Plain files: JSON lines, `samples.jsonl` of seer-sgl among them, and CSV.

A JSON line is a response or a group. A CSV has the columns `group` (or `group_id`), `length` (or
`response_length`), and perhaps `prompt_tokens`; without a row of names they stand in this order.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import msgspec

from seer_sgl.bounds import TokenId
from seer_sgl.errors import ConfigError
from seer_sgl.rollout.jsonl import read_jsonl
from seer_sgl.rollout.lengths import Length

from .trace import Imported, TracedResponse

COLUMNS = ("group", "length", "prompt_tokens")
OTHER_NAMES = {"group_id": "group", "response_length": "length"}  # of columns
LONGEST_CELL = 1 << 27  # characters: texts may stand beside the lengths
DIGITS = 10  # of a number of tokens, at most


class PlainLine(msgspec.Struct, kw_only=True):
    """One JSON line. `response_length`, `length` or `response_ids` of a response, or `lengths` of
    a whole group; `group_id` and `group` are two names of one field. Other fields are skipped."""

    group_id: str | int | None = None
    group: str | int | None = None
    index: Length | None = None
    response_length: Length | None = None
    length: Length | None = None
    response_ids: list[TokenId] | None = None
    lengths: list[Length] | None = None
    prompt_ids: list[TokenId] | None = None
    prompt_tokens: Length | None = None
    failure: str | None = None  # of a sample that was given up: its length is unknown


_decoder = msgspec.json.Decoder(PlainLine)


def read_lines(path: Path, source: str) -> Imported:
    """Returns the responses of a file of JSON lines."""
    return Imported(format="JSON lines", responses=_of_lines(path, source))


def _of_lines(path: Path, source: str) -> Iterator[TracedResponse]:
    for place, line in read_jsonl(path, source, _decoder, "lengths"):
        if line.failure is not None:
            continue
        group = line.group if line.group_id is None else line.group_id
        if group is None and line.lengths is not None and line.prompt_ids is None:
            group = place  # a line is a group
        for index, length in _samples(line, place):
            yield TracedResponse(
                place=place,
                length=length,
                group=None if group is None else str(group),
                index=index,
                prompt_ids=line.prompt_ids,
                prompt_tokens=line.prompt_tokens,
            )


def _samples(line: PlainLine, place: str) -> list[tuple[int | None, int]]:
    if line.lengths is not None:
        if not line.lengths:
            raise ConfigError(f"{place}: lengths: the list is empty")
        if line.response_length is not None:
            raise ConfigError(f"{place}: give exactly one of response_length and lengths")
        return list(enumerate(line.lengths))
    length = line.response_length if line.length is None else line.length
    if length is None:
        if line.response_ids is None:
            raise ConfigError(f"{place}: give response_length, response_ids or lengths")
        length = len(line.response_ids)
    return [(line.index, length)]


def read_csv(path: Path, source: str) -> Imported:
    """Returns the responses of a CSV file."""
    return Imported(format="CSV", responses=_of_csv(path, source))


def _of_csv(path: Path, source: str) -> Iterator[TracedResponse]:
    names: tuple[str, ...] | None = None
    longest: int | None = None  # cells of a row, where columns have no names
    for place, cells in _rows(path, source):
        if names is None:
            names = _named(cells, place)
            if names is not None:
                continue
            names = _by_position(cells, place)
            longest = len(names)
        if longest is not None and any(cells[longest:]):
            raise ConfigError(f"{place}: {len(cells)} columns, and the first row has no names")
        values = dict(zip(names, cells, strict=False))
        yield TracedResponse(
            place=place,
            length=_number(values, "length", place) or 0,
            group=values.get("group") or None,
            prompt_tokens=_number(values, "prompt_tokens", place),
        )


def _rows(path: Path, source: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the place and the cells of each row that is not empty.

    Bytes that are not UTF-8 are escaped, so that no two names become one.
    """
    csv.field_size_limit(LONGEST_CELL)
    with path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file:
        rows = csv.reader(file)
        try:
            for row in rows:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield f"{source}: {path}:{rows.line_num}", cells
        except csv.Error as error:
            raise ConfigError(f"{source}: {path}:{rows.line_num}: {error}") from error


def _named(first: list[str], place: str) -> tuple[str, ...] | None:
    """Returns the names of the columns, if the first row has them; None if it names no length.

    Raises ConfigError for two columns of one name, of which one would be taken unasked.
    """
    cells = [cell.lower() for cell in first]
    names = tuple(
        cell if OTHER_NAMES.get(cell) in cells else OTHER_NAMES.get(cell, cell) for cell in cells
    )
    if "length" not in names:
        return None
    for name in COLUMNS:
        if names.count(name) > 1:
            raise ConfigError(f"{place}: {names.count(name)} columns named {name}")
    return names


def _by_position(first: list[str], place: str) -> tuple[str, ...]:
    """Returns the names of columns without names. Raises ConfigError if the first row may have
    other names: its numbers would be taken for lengths."""
    names = COLUMNS[1:2] if len(first) == 1 else COLUMNS
    length = first[names.index("length")]
    if any(first[len(names) :]) or not _is_number(length):
        columns = ", ".join(first)
        raise ConfigError(
            f"{place}: no column named length; columns: {columns[:200]}; without names they are "
            f"{', '.join(COLUMNS)}"
        )
    return names


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS


def _number(values: dict[str, str], name: str, place: str) -> int | None:
    text = values.get(name, "")
    if not text and name != "length":
        return None
    if not _is_number(text):
        shown = text if len(text) <= 20 else f"{text[:20]}..."
        raise ConfigError(f"{place}: {name}: {shown!r} is not a number of tokens")
    return int(text)
