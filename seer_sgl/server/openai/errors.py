"""Errors on OpenAI's paths: SGLang's fields (`ErrorResponse`), and OpenAI's `error` beside them."""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from seer_sgl.server.errors import HttpError, http_error, public
from seer_sgl.server.json import refusal

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}


def error_object(error: HttpError) -> dict[str, Any]:
    """Returns SGLang's description of an error."""
    status = error.status
    kind = TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    message = public(str(error))
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def with_errors(handler: Handler) -> Handler:
    """Returns a handler that answers errors in OpenAI's form."""

    @functools.wraps(handler)
    async def handle(http: web.Request) -> web.StreamResponse:
        try:
            return await handler(http)
        except (ConnectionError, web.HTTPException):
            raise  # the client has left, or aiohttp has the answer
        except Exception as error:
            known = http_error(error)
            if known is None:
                logger.exception("%s %s failed", http.method, http.path)
                known = HttpError("internal error")
            fields = error_object(known)
            nested = {name: fields[name] for name in ("message", "type", "param", "code")}
            return refusal(known, **fields, error=nested)

    return handle
