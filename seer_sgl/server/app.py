"""The aiohttp application: routes, and what applies to every request."""

import logging
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from seer_sgl.config import bytes_of

from .auth import token_required
from .bodies import body_read
from .control.routes import add_control_routes
from .csrf import cross_site
from .errors import BadRequest, HttpError, http_error
from .generate import Generate
from .info import Info
from .json import json_response, refusal
from .monitoring.routes import add_monitoring_routes
from .openai.routes import add_openai_routes
from .rollout_routes import add_rollout_routes
from .service import Service
from .workers import add_worker_routes

logger = logging.getLogger(__name__)


def make_app(service: Service) -> web.Application:
    settings = service.settings
    largest = bytes_of(settings.max_body)
    app = web.Application(client_max_size=largest)
    app.middlewares.append(_errors)
    if settings.api_key is None:
        app.middlewares.append(_own_pages(settings.host))
    app.middlewares.append(token_required(app, settings.api_key, settings.admin_api_key))
    app.middlewares.append(body_read(largest, service.timing.body_timeout_s))
    generate, info = Generate(service), Info(service)
    app.router.add_route("POST", "/generate", generate.generate)
    app.router.add_route("PUT", "/generate", generate.generate)
    for path in ("/health", "/ping"):
        app.router.add_get(path, info.health)
    app.router.add_get("/ready", info.ready)
    app.router.add_get("/health_generate", info.health_generate)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, info.model_info)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, info.server_info)
    app.router.add_get("/get_weight_version", info.weight_version)
    app.router.add_get("/v1/loads", info.loads)
    app.router.add_get("/v1/models", info.models)
    add_rollout_routes(app, service.rollouts)
    add_control_routes(app, service)
    add_worker_routes(app, service)
    add_openai_routes(app, service)
    add_monitoring_routes(app, service)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns errors into JSON without a stack trace."""
    try:
        _require_readable(request)
        return await handler(request)
    except web.HTTPException as error:
        response = json_response({"error": {"message": error.reason}}, error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionError:
        raise  # the client has left: aiohttp closes the connection
    except Exception as error:
        known = http_error(error)
        if known is None:
            logger.exception("%s %s failed", request.method, request.path)
            known = HttpError("internal error")
        return refusal(known)


def _require_readable(request: web.Request) -> None:
    """Raises BadRequest for a header or path that would mean something else further on.

    Replies and error messages repeat Host and Origin. An engine may be asked at the client's path,
    and HTTP clients resolve `..`: a path below `/v1/models/` would lead to a control endpoint.
    """
    for name in ("Host", "Origin"):
        value = request.headers.get(name, "")
        if not value.isascii() or not value.isprintable():
            raise BadRequest(f"the header {name} has other characters than printable ASCII")
    try:
        _ = request.url
    except ValueError as error:
        raise BadRequest("the header Host is not a host and port") from error
    if ".." in request.path.split("/"):
        raise BadRequest("the path has a segment `..`")


def _own_pages(own_host: str) -> Middleware:
    """Returns a middleware that refuses what a page of another site makes a browser send."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = cross_site(request.method, request.path, request.headers, own_host)
        if why is not None:
            raise HttpError(why, HTTPStatus.FORBIDDEN)
        return await handler(request)

    return check
