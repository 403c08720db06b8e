"""The body that each engine receives: the fleet is one engine of as many ranks as all together.

Pure. Fields are sent on as the caller wrote them, and payloads unread.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.errors import InputError

Fields = Mapping[str, msgspec.Raw]  # JSON by name, undecoded
Ranks = Mapping[str, int]  # by engine id, in the order of the fleet; all of a server at its first
ENTRIES = "serialized_named_tensors"
_encoder = msgspec.json.Encoder()


def fields_of(**values: Any) -> Fields:
    """Returns the JSON of the values that are not None."""
    return {name: _raw(value) for name, value in values.items() if value is not None}


def body_of(fields: Fields, **values: Any) -> bytes:
    """Returns the body with these fields, and other values in some."""
    return _encoder.encode({**fields, **{name: _raw(value) for name, value in values.items()}})


def group_bodies(fields: Fields, ranks: Ranks, offset: int, world_size: int) -> dict[str, bytes]:
    """Returns the body of `init_weights_update_group` by engine: each has its own rank offset.

    Raises InputError if the group is too small for the ranks of the fleet: SGLang would wait for
    ever.
    """
    total = sum(ranks.values())
    if offset + total > world_size:
        raise InputError(
            f"world_size {world_size} has no room for the {total} ranks of the fleet after "
            f"rank_offset {offset}"
        )
    bodies = {}
    for engine_id, count in ranks.items():
        bodies[engine_id] = body_of(fields, rank_offset=offset)
        offset += count
    return bodies


def tensor_bodies(fields: Fields, entries: Sequence[str], ranks: Ranks) -> dict[str, bytes]:
    """Returns the body of `update_weights_from_tensor` by engine: each has its ranks' entries.

    A list for one engine (an entry per rank of each, all equally large) goes to every engine whole.
    Raises InputError for another number of entries: SGLang would crash.
    """
    ranks = {engine_id: count for engine_id, count in ranks.items() if count}
    total, sizes = sum(ranks.values()), set(ranks.values())
    if len(entries) == total:
        bodies, first = {}, 0
        for engine_id, count in ranks.items():
            bodies[engine_id] = body_of(fields, **{ENTRIES: entries[first : first + count]})
            first += count
        return bodies
    if sizes == {len(entries)}:
        return dict.fromkeys(ranks, body_of(fields, **{ENTRIES: entries}))
    raise InputError(
        f"{ENTRIES}: {len(entries)} entries; the fleet has {total} ranks, "
        f"{', '.join(f'{count} of {engine_id}' for engine_id, count in ranks.items())}"
    )


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))
