"""The body that each engine receives: the fleet is one engine of as many ranks as all together.

Pure. Fields are passed on as the client wrote them, and payloads unread.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from seer_sgl.server.decode import decode_fields
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.json import dumps

T = TypeVar("T")
Fields = dict[str, msgspec.Raw]
Ranks = Mapping[str, int]  # by engine id, in the order of the fleet

_list = msgspec.json.Decoder(list[msgspec.Raw])


def read_fields(body: bytes) -> Fields:
    """Returns the fields of a body; none for an empty body. Raises BadRequest."""
    return decode_fields(body) if body.strip() else {}


def field(fields: Fields, name: str, kind: type[T], default: T) -> T:
    """Returns one field; the default if it is missing or null. Raises BadRequest for a wrong type.

    `kind` may be a union or a generic: what msgspec decodes.
    """
    raw = fields.get(name)
    if raw is None or bytes(raw).strip() == b"null":
        return default
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{name}: {error}") from error


def with_fields(fields: Fields, **values: Any) -> bytes:
    """Returns the body with other values in some fields."""
    return dumps(fields | {name: msgspec.Raw(dumps(value)) for name, value in values.items()})


def group_bodies(fields: Fields, ranks: Ranks) -> dict[str, bytes]:
    """Returns the body of `init_weights_update_group` by engine: each has its own rank offset.

    Raises BadRequest if the group is too small for the ranks of the fleet: SGLang would wait for
    ever.
    """
    offset = field(fields, "rank_offset", int, 0)
    world_size = field(fields, "world_size", int, 0)
    total = sum(ranks.values())
    if offset + total > world_size:
        raise BadRequest(
            f"world_size {world_size} has no room for the {total} ranks of the fleet after "
            f"rank_offset {offset}"
        )
    bodies = {}
    for engine_id, count in ranks.items():
        bodies[engine_id] = with_fields(fields, rank_offset=offset)
        offset += count
    return bodies


def tensor_bodies(fields: Fields, ranks: Ranks) -> dict[str, bytes]:
    """Returns the body of `update_weights_from_tensor` by engine: each has its ranks' entries.

    A list for one engine (an entry per rank of each, all equally large) goes to every engine whole.
    Raises BadRequest for another number of entries: SGLang would fail and end.
    """
    name = "serialized_named_tensors"
    raw = fields.get(name)
    try:
        entries = _list.decode(b"[]" if raw is None else raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{name}: {error}") from error
    total, sizes = sum(ranks.values()), set(ranks.values())
    bodies = {}
    if len(entries) == total:
        first = 0
        for engine_id, count in ranks.items():
            bodies[engine_id] = with_fields(fields, **{name: entries[first : first + count]})
            first += count
    elif sizes == {len(entries)}:
        whole = dumps(fields)
        bodies = dict.fromkeys(ranks, whole)
    else:
        raise BadRequest(
            f"{name}: {len(entries)} entries; the fleet has {total} ranks, "
            f"{', '.join(f'{count} of {engine_id}' for engine_id, count in ranks.items())}"
        )
    return bodies
