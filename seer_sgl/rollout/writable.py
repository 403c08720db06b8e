"""Whether what comes with a prompt can become JSON again, checked before anything is rolled out."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MAX_DEPTH = 200  # levels; msgspec's own limit is how deep the Python stack is at the moment


class _Foreign(Exception):
    """What has no form in JSON is its user's own business: it comes back with the samples."""


def _refuse(_: object) -> None:
    raise _Foreign


_encoder = msgspec.json.Encoder(enc_hook=_refuse)


def unwritable(value: Any) -> str | None:
    """Why a value can be neither sent nor written; None if it can."""
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
    """Whether containers lie deeper in each other than MAX_DEPTH; for ever, if one is in itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = list({id(item): item for outer in level for item in _within(outer)}.values())
        if not level:
            return False
    return True


def _within(value: Any) -> Iterable[Any]:
    """The containers in a container."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return ()
    return [item for item in value if isinstance(item, Mapping | list | tuple | set | frozenset)]
