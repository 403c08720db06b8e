"""Reads the body of a request before its handler runs, within limits of size, time and type."""

import asyncio
import contextlib
from collections.abc import Iterator
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .errors import BadRequest, HttpError, TooMany

LARGE_BYTES = 1 << 20
MOST_AT_ONCE = 16  # large bodies of the largest size that are read at the same time
LINES = ("ndjson", "jsonl")  # how the types of NDJSON end
TYPES = ("application/json", "+json", *LINES)


def body_read(most: int, timeout_s: float) -> Middleware:
    """Returns a middleware that reads bodies of up to `most` bytes; handlers then get them at once.

    A body that does not arrive within `timeout_s` is refused.

    It also applies to bodies that come in chunks or compressed: what counts is their final size.
    The large bodies that are read at the same time have MOST_AT_ONCE * `most` bytes in all. Small
    ones are not counted, so that slow clients with large ones do not keep others out.
    """
    left = MOST_AT_ONCE * most

    @contextlib.contextmanager
    def room(size: int) -> Iterator[None]:
        """Takes room for one body. Raises TooMany if there is too little."""
        nonlocal left
        counted = size if size > LARGE_BYTES else 0
        if counted > left:
            raise TooMany("too many large bodies are being read")
        left -= counted
        try:
            yield
        finally:
            left += counted

    @web.middleware
    async def read(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.can_read_body:
            _require_json(request)
            size = request.content_length
            if size is not None and size > most:
                raise _too_large(most)
            # A compressed body is larger than its length.
            with room(most if size is None or _is_compressed(request) else size):
                await _read(request, most, timeout_s)
        return await handler(request)

    return read


def _is_compressed(request: web.Request) -> bool:
    return request.headers.get("Content-Encoding", "identity") != "identity"


async def _read(request: web.Request, most: int, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await request.read()
    except TimeoutError as error:
        why = f"the body did not arrive within {timeout_s:g} s"
        raise HttpError(why, HTTPStatus.REQUEST_TIMEOUT) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(most) from error
    except web.RequestPayloadError as error:
        raise BadRequest(
            "the body cannot be read: it is cut short or not encoded as its header says"
        ) from error


def _require_json(request: web.Request) -> None:
    """Raises BadRequest for another Content-Type, as SGLang does.

    A web page of another site can make a browser send any other type without asking first.
    """
    if not request.content_type.endswith(TYPES):
        raise BadRequest("Content-Type must be application/json, or NDJSON for /rollout")


def _too_large(most: int) -> HttpError:
    why = f"the body has more than {most} bytes (server.max_body)"
    return HttpError(why, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
