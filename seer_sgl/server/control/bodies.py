"""Reads the bodies of control calls. Pure."""

from typing import TypeVar

import msgspec

from seer_sgl.backend.bodies import ENTRIES, Fields
from seer_sgl.backend.groups import DEFAULT_GROUP, TrainerGroup
from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.server.decode import decode_fields, unreadable_as_refusal

T = TypeVar("T")


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
    with unreadable_as_refusal(name):
        return msgspec.json.decode(raw, type=kind)


def read_update(path: str, fields: Fields) -> WeightUpdate:
    """Returns the update that a call asks for. Raises BadRequest for a field of a wrong type."""
    new = WeightUpdate(
        path=path,
        fields=fields,
        version=field(fields, "weight_version", str | None, None),  # type: ignore[arg-type]
        flush_cache=field(fields, "flush_cache", bool, True),
    )
    if not new.needs_session:
        return new
    return msgspec.structs.replace(
        new,
        selector=field(fields, "selector", str, "all"),
        group=group_name(fields) if new.collective else DEFAULT_GROUP,
        entries=[] if new.collective else field(fields, ENTRIES, list[str], []),
    )


def read_group(fields: Fields) -> TrainerGroup:
    """Returns the group of `init_weights_update_group`. Raises BadRequest for a wrong type."""
    return TrainerGroup(
        rank_offset=field(fields, "rank_offset", int, 0),
        world_size=field(fields, "world_size", int, 0),
        name=group_name(fields),
        fields=fields,
    )


def group_name(fields: Fields) -> str:
    """Returns the name of the process group in a call. Raises BadRequest for a wrong type."""
    return field(fields, "group_name", str, DEFAULT_GROUP)
