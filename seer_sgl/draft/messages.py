"""The messages between the draft hub and the replicas in the engines.

Tokens are identified by (group, sequence, position), so a receiver can separate new tokens from
duplicate, late or reordered ones. Every field has a limit, which decoding enforces.
"""

import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, TypeVar

import msgspec

T = TypeVar("T")
MAX_NAME = 200  # characters of a group's name
MAX_NUMBER = (1 << 31) - 1
MAX_SEQUENCES = 4096  # of a group: its samples, samples of earlier epochs, forks
MAX_ENTRIES = 1 << 14  # of one message
FRAME_BYTES = 1 << 19  # of tokens and names in one message: half of the link's limit
TOKEN_BYTES = 4
MIXER = 65_521  # a prime: a CRC modulo a power of two gives neighbours one number
DELTA_BYTES = 32  # upper bound for a delta without its name and tokens

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Names = Annotated[list[Name], msgspec.Meta(max_length=MAX_ENTRIES)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Lengths = Annotated[dict[Number, Number], msgspec.Meta(max_length=MAX_SEQUENCES)]
Groups = Annotated[dict[Name, Lengths], msgspec.Meta(max_length=MAX_ENTRIES)]


class Open(msgspec.Struct, tag="open", frozen=True):
    """From an engine: the groups that it serves, and the number of tokens it has per sequence.

    An engine sends it when a group begins, after each connect, and periodically. Both sides then
    resend the tokens of lost messages.
    """

    groups: Groups


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """From an engine: it serves these groups no longer."""

    groups: Names


class Delta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Tokens of a response from `position` on, counted from its first; int32 little-endian."""

    group: Name
    sequence: Number
    position: Number
    tokens: bytes

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.position + len(self.tokens) // TOKEN_BYTES

    @property
    def cost(self) -> int:
        """The maximum of bytes that it takes in a message."""
        return DELTA_BYTES + 4 * len(self.group) + len(self.tokens)


class Deltas(msgspec.Struct, tag="deltas", frozen=True):
    """New tokens: from an engine to the hub, or from all other engines to one engine."""

    deltas: Annotated[list[Delta], msgspec.Meta(max_length=MAX_ENTRIES)]


class Want(msgspec.Struct, tag="want", frozen=True):
    """From the hub: the sequences whose next tokens it lacks, and the number of tokens it has."""

    groups: Groups


class Done(msgspec.Struct, tag="done", frozen=True):
    """The groups that are complete or abandoned: no engine drafts for them any more."""

    groups: Names


ToHub = Open | Leave | Deltas | Done
ToReplica = Deltas | Want | Done


def wire_name(group: str) -> str:
    """Returns a group's name for messages: itself, or its digest.

    A digest replaces a name that is too long or not valid text: JSON permits half a surrogate pair.
    """
    encoded = group.encode(errors="backslashreplace")
    if len(group) <= MAX_NAME and encoded.decode() == group:
        return group
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def hub_of(group: str, hubs: int) -> int:
    """Returns the number of the hub that serves a group. group: its name in messages."""
    return zlib.crc32(group.encode()) % MIXER % hubs


def by_hub(message: ToHub, hubs: int) -> dict[int, ToHub]:
    """Returns the parts of a message, each for the hub of its groups."""
    if hubs == 1:
        return {0: message}
    if isinstance(message, Deltas):
        deltas = _split(message.deltas, lambda delta: delta.group, hubs)
        return {hub: Deltas(part) for hub, part in deltas.items()}
    if isinstance(message, Open):
        groups = _split(message.groups, str, hubs)
        return {
            hub: Open({name: message.groups[name] for name in part}) for hub, part in groups.items()
        }
    names = _split(message.groups, str, hubs)
    return {hub: type(message)(part) for hub, part in names.items()}


def _split(entries: Iterable[T], group: Callable[[T], str], hubs: int) -> dict[int, list[T]]:
    parts: dict[int, list[T]] = {}
    for entry in entries:
        parts.setdefault(hub_of(group(entry), hubs), []).append(entry)
    return parts


def pieces(group: str, sequence: int, tokens: "array[int]", position: int) -> Iterator[Delta]:
    """Yields the tokens from `position` on, in pieces short enough for a message."""
    step = (FRAME_BYTES - DELTA_BYTES - 4 * MAX_NAME) // TOKEN_BYTES
    for start in range(position, len(tokens), step):
        yield Delta(group, sequence, start, tokens[start : start + step].tobytes())


def batched(deltas: Iterable[Delta]) -> Iterator[Deltas]:
    """Yields the deltas in order, in as few messages as their sizes allow."""
    return (Deltas(batch) for batch in _filled(deltas, lambda delta: delta.cost))


def grouped(lengths: Iterable[tuple[str, dict[int, int]]]) -> Iterator[dict[str, dict[int, int]]]:
    """Yields (group, lengths) pairs as mappings that fit into a message."""
    batches = _filled(lengths, lambda of: DELTA_BYTES + 4 * len(of[0]) + 10 * len(of[1]))
    return (dict(batch) for batch in batches)


def named(groups: Iterable[str]) -> Iterator[list[str]]:
    """Yields the names of groups in order, in lists that fit into a message."""
    return _filled(groups, lambda name: DELTA_BYTES + 4 * len(name))


def _filled(entries: Iterable[T], cost: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    room = FRAME_BYTES
    for entry in entries:
        room -= cost(entry)
        if batch and (room < 0 or len(batch) == MAX_ENTRIES):
            yield batch
            batch, room = [], FRAME_BYTES - cost(entry)
        batch.append(entry)
    if batch:
        yield batch
