"""The routes of the control plane."""

import functools
from collections.abc import Awaitable, Callable

from aiohttp import web

from seer_sgl.backend.calls import CALL_S, limited
from seer_sgl.errors import InputError, RolloutError, StateError
from seer_sgl.server.auth import add_admin_route
from seer_sgl.server.errors import BadRequest, Conflict, HttpError, Unavailable
from seer_sgl.server.json import json_response
from seer_sgl.server.service import Service

from .answers import Answer
from .calls import TO_EACH, ControlCalls

POST, GET_POST = ("POST",), ("GET", "POST")
Work = Callable[[web.Request, bytes], Awaitable[Answer]]
Handler = Callable[[web.Request], Awaitable[web.Response]]


def add_control_routes(app: web.Application, service: Service) -> None:
    """Adds SGLang's control endpoints; each changes every engine and gives one answer."""
    calls = ControlCalls(service)
    for path, methods, handler in (
        ("/pause_generation", POST, _timed(calls.pause)),
        ("/continue_generation", POST, _timed(calls.resume)),
        ("/abort_request", POST, _handler(calls.abort)),
        ("/flush_cache", GET_POST, _handler(calls.flush)),
        ("/release_memory_occupation", GET_POST, _timed(calls.release)),
        ("/resume_memory_occupation", GET_POST, _timed(calls.take_back)),
        ("/init_weights_update_group", POST, _timed(calls.init_group)),
        ("/destroy_weights_update_group", POST, _timed(calls.destroy_group)),
        ("/begin_weight_update", POST, _timed(calls.begin)),
        ("/end_weight_update", POST, _timed(calls.end)),
        ("/update_weights_from_disk", POST, _timed(calls.update)),
        ("/update_weights_from_distributed", POST, _timed(calls.update)),
        ("/update_weights_from_tensor", POST, _timed(calls.update)),
        ("/update_weights_from_ipc", POST, _timed(calls.update)),
        ("/update_weight_version", POST, _timed(calls.rename)),
        ("/weights_checker", GET_POST, _handler(calls.check_weights)),
        ("/get_weights_by_name", GET_POST, _handler(calls.weights_by_name)),
        *((path, methods, _handler(calls.to_each)) for path, methods in TO_EACH.items()),
    ):
        for method in methods:
            add_admin_route(app, method, path, handler)


def _handler(work: Work) -> Handler:
    """Returns the handler of a call, whose errors have SGLang's fields."""

    @functools.wraps(work)
    async def handle(http: web.Request) -> web.Response:
        try:
            status, answer = await work(http, await http.read())
        except HttpError as error:
            return _refusal(error)
        except StateError as error:
            return _refusal(Conflict(str(error)))
        except InputError as error:
            return _refusal(BadRequest(str(error)))
        except RolloutError as error:
            return _refusal(Unavailable(str(error)))
        return json_response(answer, status)

    return handle


def _timed(work: Work) -> Handler:
    """Returns a handler whose query may limit the seconds in which each engine must answer."""

    @functools.wraps(work)
    async def within(http: web.Request, body: bytes) -> Answer:
        with limited(_timeout_s(http)):
            return await work(http, body)

    return _handler(within)


def _refusal(error: HttpError) -> web.Response:
    """Returns SGLang's fields of a control call that failed, and those of its other errors."""
    fields = {"success": False, "message": str(error), "error": {"message": str(error)}}
    return json_response(fields, error.status)


def _timeout_s(http: web.Request) -> float:
    """Returns the query's `timeout`. Raises BadRequest unless it is above 0 and at most CALL_S."""
    text = http.query.get("timeout")
    if text is None:
        return CALL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= CALL_S:
        raise BadRequest(f"timeout: {text!r} is not a number above 0 and up to {CALL_S:g}")
    return seconds
