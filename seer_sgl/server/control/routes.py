"""The routes of the control plane."""

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from seer_sgl.backend.calls import CALL_S, limited
from seer_sgl.backend.replies import EnginesFailed
from seer_sgl.errors import SeerError
from seer_sgl.server.auth import add_admin_route
from seer_sgl.server.errors import BadRequest, http_error, public
from seer_sgl.server.json import json_response, refusal
from seer_sgl.server.service import Service

from .answers import Answer, combined
from .calls import RECORDS, TO_EACH, ControlCalls

POST, GET_POST = ("POST",), ("GET", "POST")
Work = Callable[[web.Request, bytes], Coroutine[Any, Any, Answer]]
Handler = Callable[[web.Request], Awaitable[web.Response]]


def add_control_routes(app: web.Application, service: Service) -> None:
    """Adds SGLang's control endpoints; each changes every engine and gives one answer."""
    calls = ControlCalls(service)
    handler = functools.partial(_handler, service, timed=False)
    timed = functools.partial(_handler, service, timed=True)
    for path, methods, handle in (
        ("/pause_generation", POST, timed(calls.pause)),
        ("/continue_generation", POST, timed(calls.resume)),
        ("/abort_request", POST, handler(calls.abort)),
        ("/flush_cache", GET_POST, handler(calls.flush)),
        ("/release_memory_occupation", GET_POST, timed(calls.release)),
        ("/resume_memory_occupation", GET_POST, timed(calls.take_back)),
        ("/init_weights_update_group", POST, timed(calls.init_group)),
        ("/destroy_weights_update_group", POST, timed(calls.destroy_group)),
        ("/begin_weight_update", POST, timed(calls.begin)),
        ("/end_weight_update", POST, timed(calls.end)),
        ("/update_weights_from_disk", POST, timed(calls.update)),
        ("/update_weights_from_distributed", POST, timed(calls.update)),
        ("/update_weights_from_tensor", POST, timed(calls.update)),
        ("/update_weights_from_ipc", POST, timed(calls.update)),
        ("/update_weight_version", POST, timed(calls.rename)),
        ("/start_profile", GET_POST, handler(calls.start_profile)),
        ("/slow_down", GET_POST, handler(calls.slow_down)),
        *((path, GET_POST, handler(calls.record_experts)) for path in RECORDS),
        ("/load_lora_adapter_from_tensors", POST, handler(calls.load_adapter)),
        ("/weights_checker", GET_POST, handler(calls.check_weights)),
        ("/get_weights_by_name", GET_POST, handler(calls.weights_by_name)),
        *((path, methods, handler(calls.to_each)) for path, methods in TO_EACH.items()),
    ):
        for method in methods:
            add_admin_route(app, method, path, handle)


def _handler(service: Service, work: Work, *, timed: bool) -> Handler:
    """Returns the handler of a call, which continues when its client leaves.

    `timed`: the query may limit the seconds in which each engine must answer. Errors have SGLang's
    fields.
    """

    @functools.wraps(work)
    async def handle(http: web.Request) -> web.Response:
        try:
            body = await http.read()
            with limited(_timeout_s(http) if timed else CALL_S):
                status, answer = await service.backend.to_the_end(work(http, body))
        except EnginesFailed as error:
            status, answer = combined(error.result)
        except SeerError as error:
            known = http_error(error)
            if known is None:
                raise
            # SGLang's fields of a control call that failed, beside those of its other errors.
            return refusal(known, success=False, message=public(str(error)))
        return json_response(answer, status)

    return handle


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
