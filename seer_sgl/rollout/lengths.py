"""Reads the response lengths of an earlier rollout from a JSONL file.

A line is a sample as in `samples.jsonl` (`prompt_ids` or `group_id`; `response_length`, `index`) or
a whole group: `{"prompt_ids": [...] | "group_id": ..., "lengths": [...]}`. Other fields are
skipped. Every error message names the file, the line and the key.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from seer_sgl.bounds import TokenId
from seer_sgl.errors import ConfigError, PromptError
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.types import Group, token_array

from .jsonl import read_jsonl

Length = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class LengthRecord(msgspec.Struct, kw_only=True):
    """One line: a sample or a group."""

    prompt_ids: list[TokenId] | None = None
    group_id: str | None = None
    index: Length | None = None
    response_length: Length | None = None
    lengths: list[Length] | None = None
    failure: str | None = None  # of a sample that was given up: its length is unknown

    def samples(self) -> list[tuple[int | None, int]]:
        """Returns the sample index (None: the next one) and the length of each response."""
        if self.lengths is not None:
            return list(enumerate(self.lengths))
        if self.response_length is None or self.failure is not None:
            return []
        return [(self.index, self.response_length)]


_decoder = msgspec.json.Decoder(LengthRecord)


def read_lengths(path: Path) -> KnownLengths:
    """Returns the lengths in a file. Raises ConfigError with one line."""
    known = KnownLengths()
    for place, record in read_jsonl(path, "scheduling.lengths", _decoder, "lengths"):
        _check(record, place)
        ids = None if record.prompt_ids is None else token_array(record.prompt_ids)
        for index, length in record.samples():
            known.add(length, prompt_ids=ids, group_id=record.group_id or "", index=index)
    return known


def expect_all(known: KnownLengths, groups: Iterable[Group], source: str) -> None:
    """Raises PromptError unless `known` has the length of every sample; policy oracle needs it."""
    for group in groups:
        lengths = known.of(group)
        for request in group.requests:
            if request.index not in lengths:
                raise PromptError(
                    f"scheduling.lengths: {source} has no length of sample {request.index} of "
                    f"prompt {group.group_id!r}, which policy: oracle needs"
                )


def _check(record: LengthRecord, place: str) -> None:
    if record.prompt_ids is None and record.group_id is None:
        raise ConfigError(f"{place}: give prompt_ids or group_id")
    if (record.response_length is None) == (record.lengths is None):
        raise ConfigError(f"{place}: give exactly one of response_length and lengths")
    if record.lengths == []:
        raise ConfigError(f"{place}: lengths: the list is empty")
