"""The form of a journal file: a first line, then blocks, each with its length and checksums.

A block is written and synced before the next one begins. So a crash, also of the machine, damages
at most the last block: it is cut. A damaged block with another one behind it was damaged later:
then the file is refused. A block has its number and the checksum of the block before it, so that a
block that is missing, doubled or from another file is damage too.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

VERSION = 1
FIRST_LINE = b"seer-sgl journal %d\n" % VERSION
MAGIC = b"\xf1SGJ"
# Magic, number of the block, bytes of its content, checksum of the block before; then its own.
_HEAD = struct.Struct("<4sIII")
_SUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
OVERHEAD = _HEAD.size + _SUM.size
Bytes = mmap.mmap | bytes  # of a file


class Damaged(ValueError):
    """A file that is no journal, or whose damage is not at its end; the message has the reason."""


class Tail(NamedTuple):
    """The end of the valid part of a file: what the next block follows."""

    position: int  # bytes
    blocks: int
    checksum: int  # of the last block


class Block(NamedTuple):
    """The place of a valid block's content."""

    begin: int
    end: int
    checksum: int


def make_block(records: Sequence[bytes], tail: Tail) -> tuple[bytes, Tail]:
    """Returns a block that follows `tail`, and the tail behind it."""
    parts = [part for record in records for part in (_LENGTH.pack(len(record)), record)]
    head = _HEAD.pack(MAGIC, tail.blocks, sum(map(len, parts)), tail.checksum)
    checksum = zlib.crc32(head)
    for part in parts:  # joined once: copies are most of a journal's cost
        checksum = zlib.crc32(part, checksum)
    block = b"".join((head, _SUM.pack(checksum), *parts))
    return block, Tail(tail.position + len(block), tail.blocks + 1, checksum)


def scan(data: Bytes) -> tuple[list[Block], Tail]:
    """Returns the valid blocks of a file and the end of the last one; a torn block is left out.

    Raises Damaged if the file is no journal of this version, or if a valid block lies behind an
    invalid one.
    """
    tail = Tail(_after_first_line(data), 0, 0)
    blocks: list[Block] = []
    while (block := _next_block(data, tail)) is not None:
        blocks.append(block)
        tail = Tail(block.end, tail.blocks + 1, block.checksum)
    if _any_block(data, tail.position):
        raise Damaged(f"it is damaged at byte {tail.position}, not at its end")
    return blocks, tail


def records_in(content: bytes) -> Iterator[memoryview]:
    """Yields the records of a block's content."""
    view, position = memoryview(content), 0
    while position < len(view):
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        yield view[position : position + length]
        position += length


def _after_first_line(data: Bytes) -> int:
    """Returns the length of the first line; 0 for a file that ends before it does."""
    begin = data[: len(FIRST_LINE)]
    if begin == FIRST_LINE:
        return len(FIRST_LINE)
    if FIRST_LINE.startswith(begin):
        return 0
    words = data[:64].partition(b"\n")[0].split(b" ")
    if words[:2] == FIRST_LINE.split(b" ")[:2] and words[2:] and words[2].isdigit():
        raise Damaged(f"it has version {int(words[2])}; this seer-sgl reads version {VERSION}")
    raise Damaged("it is no journal of seer-sgl")


def _next_block(data: Bytes, tail: Tail) -> Block | None:
    """Returns the block that follows `tail`; None if there is no valid one."""
    block = _block_at(data, tail.position)
    if block is None:
        return None
    _, number, _, before = _HEAD.unpack(data[tail.position : tail.position + _HEAD.size])
    return block if (number, before) == (tail.blocks, tail.checksum) else None


def _block_at(data: Bytes, position: int) -> Block | None:
    """Returns the block at a position, of any number; None if there is none, or a torn one."""
    begin = position + OVERHEAD
    head = data[position : position + _HEAD.size]
    if begin > len(data) or not head.startswith(MAGIC):
        return None
    end = begin + _HEAD.unpack(head)[2]
    if end > len(data):
        return None
    (checksum,) = _SUM.unpack(data[position + _HEAD.size : begin])
    if zlib.crc32(data[begin:end], zlib.crc32(head)) != checksum:
        return None
    return Block(begin, end, checksum)


def _any_block(data: Bytes, position: int) -> bool:
    """Returns whether a valid block begins at a position or behind it."""
    at = data.find(MAGIC, position)
    while at >= 0:
        if _block_at(data, at) is not None:
            return True
        at = data.find(MAGIC, at + 1)
    return False
