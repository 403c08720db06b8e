"""JSON of replies, in SGLang's form."""

from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.engine.stream import DONE, PREFIX
from seer_sgl.engine.stream import END as SEPARATOR

from .errors import HttpError, public

JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
END = PREFIX + b" " + DONE + SEPARATOR  # of a stream
_encoder = msgspec.json.Encoder()


def dumps(value: Any) -> bytes:
    """Returns a value as JSON; numbers that are not finite become null."""
    return _encoder.encode(value)


def event_of(value: Any) -> bytes:
    return PREFIX + b" " + dumps(value) + SEPARATOR


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=dumps(value), status=status, headers=JSON)


def refusal(error: HttpError, /, **fields: Any) -> web.Response:
    """Returns the response of an error. `fields`: of its body, beside or in place of `error`."""
    body = {"error": {"message": public(str(error))}, **fields}
    response = json_response(body, error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def error_fields(error: HttpError) -> dict[str, Any]:
    """Returns SGLang's fields of an error in a stream."""
    kind = "invalid_request_error" if error.status < 500 else "internal_server_error"
    return {
        "message": public(str(error)),
        "type": kind,
        "code": error.status,
        "retryable": error.retry_after_s is not None,
    }
