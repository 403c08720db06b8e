"""What a route reads and answers, stated at its handler: `/openapi.json` is made of it."""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

import msgspec

EVENTS_TYPE = "text/event-stream"
STATED = "__seer_operation__"
H = TypeVar("H", bound=Callable[..., Any])


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The types of a route; a tuple: one of them. None: no body, or one that is not described.

    `reads`: of the body. `returns`: of the reply, as JSON. `streams`: of each event of a stream;
    `media`: the stream's media type. `query`: the types of the parameters in the URL. `optional`:
    whether the body may be missing. `status`: of a reply that is no error.
    """

    reads: Any = None
    returns: Any = None
    streams: Any = None
    media: str = EVENTS_TYPE
    query: Mapping[str, Any] = {}
    optional: bool = False
    status: int = 200


def operation(**types: Any) -> Callable[[H], H]:
    """Returns a decorator for a handler, or for the `__call__` of one. `types`: of Operation."""
    stated = Operation(**types)

    def state(handler: H) -> H:
        setattr(handler, STATED, stated)
        return handler

    return state


class ErrorFields(TypedDict):
    """What went wrong."""

    message: str


class Error(TypedDict):
    """A refusal, by this server or by an engine that got the request as it is."""

    error: ErrorFields | str


class EngineError(TypedDict):
    """SGLang's refusal of a body that it cannot read."""

    object: str
    message: str


class FleetError(TypedDict):
    """The answer to a call that not all engines did. `engines`: status and reply of each."""

    message: str
    success: bool
    engines: dict[str, Any]
