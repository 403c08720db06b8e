"""Response lengths of an earlier rollout, from a JSONL file.

A line is a sample as in `samples.jsonl` (`prompt_ids` or `group_id`; `response_length`, `index`) or
a whole group: `{"prompt_ids": [...] | "group_id": ..., "lengths": [...]}`. Everything else in it is
skipped. Every complaint names the file, the line and the key.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from seer_sgl.config import key_and_message
from seer_sgl.errors import ConfigError, PromptError
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import Group, token_array

from .prompts import MAX_TOKEN_ID

Length = Annotated[int, msgspec.Meta(ge=0)]


class LengthRecord(msgspec.Struct, kw_only=True):
    """One line: a sample or a group."""

    prompt_ids: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]] | None = None
    group_id: str | None = None
    index: Length | None = None
    response_length: Length | None = None
    lengths: list[Length] | None = None


_decoder = msgspec.json.Decoder(LengthRecord)


def read_lengths(path: Path) -> KnownLengths:
    """The lengths in a file. Raises ConfigError with one line."""
    known = KnownLengths()
    empty = True
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    _add(known, line, f"scheduling.lengths: {path}:{number}")
                    empty = False
    except OSError as error:
        raise ConfigError(f"scheduling.lengths: {path}: {error.strerror}") from None
    if empty:
        raise ConfigError(f"scheduling.lengths: {path}: no lengths")
    return known


def expect_all(known: KnownLengths, groups: Iterable[Group], source: str) -> None:
    """Raise PromptError unless the length of every sample is known, as the oracle needs."""
    for group in groups:
        lengths = known.of(group)
        for request in group.requests:
            if request.index not in lengths:
                raise PromptError(
                    f"scheduling.lengths: {source} has no length of sample {request.index} of "
                    f"prompt {group.group_id!r}, which policy: oracle needs"
                )


def _add(known: KnownLengths, line: bytes, place: str) -> None:
    try:
        record = _decoder.decode(line)
    except msgspec.ValidationError as error:
        key, message = key_and_message(str(error))
        raise ConfigError(f"{place}: {key}: {message}" if key else f"{place}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConfigError(f"{place}: not JSON") from None
    if record.prompt_ids is None and record.group_id is None:
        raise ConfigError(f"{place}: give prompt_ids or group_id")
    if (record.response_length is None) == (record.lengths is None):
        raise ConfigError(f"{place}: give exactly one of response_length and lengths")
    lengths = record.lengths
    samples = [(record.index, record.response_length)] if lengths is None else enumerate(lengths)
    for index, length in samples:
        assert length is not None
        known.add(
            length,
            prompt_ids=None if record.prompt_ids is None else token_array(record.prompt_ids),
            group_id=record.group_id or "",
            index=index,
        )
