"""Reads the body of a request before its handler runs, within limits of size, time and type."""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .errors import BadRequest, TooLarge, TooSlow

# A client that sends its body byte by byte holds a socket no longer than this.
BODY_TIMEOUT_S = 120.0
TYPES = ("application/json", "+json", "ndjson", "jsonl")


def body_read(most: int) -> Middleware:
    """Returns a middleware that reads bodies of up to `most` bytes; handlers then get them at once.

    It also applies to bodies that come in chunks or compressed: what counts is their final size.
    """

    @web.middleware
    async def read(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.can_read_body:
            _require_json(request)
            if (request.content_length or 0) > most:
                raise _too_large(most)
            await _read(request, most)
        return await handler(request)

    return read


async def _read(request: web.Request, most: int) -> None:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            await request.read()
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from error
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


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body has more than {most} bytes (server.max_body)")
