"""Reads a journal back: its checks, its header and its records."""

import contextlib
import logging
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from seer_sgl.errors import JournalError

from .blocks import Block, Bytes, Damaged, Tail, records_in, scan
from .facts import extended
from .folder import JournalFolder
from .records import Complete, Ended, Extended, Header, Record, Resumed, Returned, decode

logger = logging.getLogger(__name__)


class StoredRollout(NamedTuple):
    """The facts of a rollout, read from a checked journal.

    `header`: with the prompts that were added. `runs`: of earlier processes. `elapsed_s`: the time
    of the rollout at the last record. `weight_version`: of the newest token, else of the header.
    `complete`: the last record, if nothing is left to do.
    """

    header: Header
    tail: Tail
    blocks: list[Block]
    runs: int
    elapsed_s: float
    weight_version: str
    complete: Complete | None


def read(folder: JournalFolder) -> StoredRollout | None:
    """Returns a checked journal; None if it ended before its header was written.

    Raises JournalError if it is damaged, or of another version.
    """
    with folder.explained(), _mapped(folder.file) as data:
        try:
            blocks, tail = scan(data)
            return _summary(data, blocks, tail, folder) if blocks else None
        except (ValueError, msgspec.MsgspecError) as error:
            raise JournalError(f"{folder.name}: {error}") from error


def records(folder: JournalFolder, stored: StoredRollout) -> Iterator[Record]:
    """Yields the records behind the header, in order."""
    with folder.explained(), _mapped(folder.file) as data:
        yield from _behind_header(data, stored.blocks)


def _summary(data: Bytes, blocks: list[Block], tail: Tail, folder: JournalFolder) -> StoredRollout:
    header = _header(data, blocks)
    version, runs, elapsed_s = header.weight_version, 1, 0.0
    last: Record = header
    for last in _behind_header(data, blocks):
        match last:
            case Returned():
                elapsed_s = max(elapsed_s, last.returned_at)
                version = last.weight_spans[-1].version if last.weight_spans else version
            case Ended():
                elapsed_s = max(elapsed_s, last.ended_at)
            case Resumed():
                runs, elapsed_s = last.run + 1, max(elapsed_s, last.at)
            case Extended():
                header = extended(header, last)
    torn = len(data) - tail.position
    if torn:
        logger.warning("%s: its last %d bytes are torn and left out", folder.name, torn)
    complete = last if isinstance(last, Complete) else None
    return StoredRollout(header, tail, blocks, runs, elapsed_s, version, complete)


def _header(data: Bytes, blocks: list[Block]) -> Header:
    first = next(records_in(data[blocks[0].begin : blocks[0].end]), b"")
    header = decode(first)
    if not isinstance(header, Header):
        raise Damaged("its first record is no header")
    return header


def _behind_header(data: Bytes, blocks: list[Block]) -> Iterator[Record]:
    for block in blocks[1:]:
        yield from map(decode, records_in(data[block.begin : block.end]))


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[Bytes]:
    with path.open("rb") as file:
        if not path.stat().st_size:  # it cannot be mapped
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
