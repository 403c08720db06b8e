"""What every section of the config tree has in common."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

Processes = Annotated[int, msgspec.Meta(ge=1, le=1024)]  # per kind and machine
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base class of every section of the tree."""


S = TypeVar("S", bound=Section)


def with_values(section: S, values: Mapping[str, Any]) -> S:
    """Returns the section with other values at the given key paths. The values are not checked."""
    for key, value in values.items():
        name, _, below = key.partition(".")
        inner = with_values(getattr(section, name), {below: value}) if below else value
        section = msgspec.structs.replace(section, **{name: inner})
    return section
