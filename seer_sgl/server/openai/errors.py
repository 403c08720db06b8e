"""Errors on OpenAI's paths: SGLang's fields (`ErrorResponse`), and OpenAI's `error` beside them."""

import functools
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from seer_sgl.errors import InputError, RolloutError

from ..errors import BadRequest, HttpError, Unavailable
from ..json import json_response

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}


def error_object(message: str, status: int) -> dict[str, Any]:
    """Returns SGLang's description of an error."""
    kind = TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def with_errors(handler: Handler) -> Handler:
    """Returns a handler that answers errors in OpenAI's form."""

    @functools.wraps(handler)
    async def handle(http: web.Request) -> web.StreamResponse:
        try:
            return await handler(http)
        except ConnectionError:
            raise  # the client has left
        except HttpError as error:
            return _response(error)
        except web.HTTPException as error:
            return _answer(error.reason, error.status)
        except InputError as error:
            return _response(BadRequest(str(error)))
        except RolloutError as error:
            return _response(Unavailable(str(error)))
        except Exception:
            logger.exception("%s %s failed", http.method, http.path)
            return _answer("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)

    return handle


def _response(error: HttpError) -> web.Response:
    response = _answer(str(error), error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _answer(message: str, status: int) -> web.Response:
    fields = error_object(message, status)
    nested = {name: fields[name] for name in ("message", "type", "param", "code")}
    return json_response({**fields, "error": nested}, status)
