"""Checks before a rollout that the data of a prompt can be written as JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MAX_DEPTH = 200  # levels; msgspec's own limit depends on the current depth of the Python stack


class _Foreign(Exception):
    """An object without a JSON form. It is allowed: it is returned with the samples unmodified."""


def _refuse(_: object) -> None:
    raise _Foreign


_encoder = msgspec.json.Encoder(enc_hook=_refuse)


def unwritable(value: Any) -> str | None:
    """Returns the reason why a value can be neither sent nor written; None if it can."""
    if _deep(value):
        return f"nested deeper than {MAX_DEPTH} levels"
    try:
        _encoder.encode(value)
    except UnicodeEncodeError:
        return "text with half a surrogate pair"
    except _Foreign:
        return None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _deep(value: Any) -> bool:
    """Returns whether containers are nested deeper than MAX_DEPTH, or one contains itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = list({id(item): item for outer in level for item in _within(outer)}.values())
        if not level:
            return False
    return True


def _within(value: Any) -> Iterable[Any]:
    """Returns the containers that a container directly contains."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return ()
    return [item for item in value if isinstance(item, Mapping | list | tuple | set | frozenset)]
