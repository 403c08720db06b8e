"""Decodes the JSON of clients. Pure."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from .errors import BadRequest

_any = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(text: bytes | msgspec.Raw, name: str = "the body") -> Any:
    """Returns the value of a JSON text. Raises BadRequest; `name` is the text's."""
    with unreadable_as_refusal(name):
        return _any.decode(text)


def decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Returns the fields of a JSON object, undecoded. Raises BadRequest for anything else."""
    with unreadable_as_refusal("the body"):
        return _fields.decode(body)


@contextlib.contextmanager
def unreadable_as_refusal(name: str) -> Iterator[None]:
    """Raises BadRequest instead of what msgspec raises for text that is not the wanted JSON.

    That is: broken JSON or UTF-8, NaN, a lone surrogate, a huge number, too many levels.
    """
    try:
        yield
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{name}: {error}") from error
