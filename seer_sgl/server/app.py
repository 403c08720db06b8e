"""The aiohttp application: routes, and what applies to every request."""

import hmac
import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from seer_sgl.errors import InputError, RolloutError

from .errors import HttpError, Unavailable
from .generate import Generate
from .info import Info
from .json import json_response
from .rollout_routes import add_rollout_routes
from .service import Service

logger = logging.getLogger(__name__)
OPEN = ("/health", "/health_generate", "/ping")  # need no token, as in SGLang


def make_app(service: Service, api_key: str | None) -> web.Application:
    """Returns the application. `api_key`: the bearer token of clients; None: no token."""
    app = web.Application(
        client_max_size=service.settings.body_bytes(),
        middlewares=[_errors, _token_required(api_key)],
    )
    generate, info = Generate(service), Info(service)
    app.router.add_route("POST", "/generate", generate.generate)
    app.router.add_route("PUT", "/generate", generate.generate)
    for path in ("/health", "/ping"):
        app.router.add_get(path, info.health)
    app.router.add_get("/health_generate", info.health_generate)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, info.model_info)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, info.server_info)
    app.router.add_get("/v1/loads", info.loads)
    app.router.add_get("/v1/models", info.models)
    add_rollout_routes(app, service.rollouts)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns errors into JSON without a stack trace."""
    try:
        return await handler(request)
    except HttpError as error:
        return _refusal(error)
    except web.HTTPException as error:
        return json_response(_body(error.reason), error.status)
    except InputError as error:
        return json_response(_body(str(error)), 400)
    except RolloutError as error:
        return _refusal(Unavailable(str(error)))
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return json_response(_body("internal error"), 500)


def _refusal(error: HttpError) -> web.Response:
    response = json_response({"error": {"message": str(error)}}, error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _body(message: str) -> dict[str, object]:
    return {"error": {"message": message}}


def _token_required(token: str | None) -> Middleware:
    wanted = None if token is None else f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if wanted is not None and request.path not in OPEN:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, wanted):
                return json_response({"error": "Unauthorized"}, 401)
        return await handler(request)

    return check
