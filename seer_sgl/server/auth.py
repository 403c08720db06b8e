"""Bearer tokens: clients have one, and the routes that administer the fleet may have another."""

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .json import json_response
from .monitoring.routes import PAGE_FILES

OPEN = ("/health", "/health_generate", "/ready", "/ping", *PAGE_FILES)  # need no token
ADMIN_ROUTES: web.AppKey[set[web.AbstractRoute]] = web.AppKey("ADMIN_ROUTES", set)


def add_admin_route(app: web.Application, method: str, path: str, handler: Handler) -> None:
    """Adds a route that needs the admin token, if the server has one."""
    app[ADMIN_ROUTES].add(app.router.add_route(method, path, handler))


def is_admin(http: web.Request) -> bool:
    """Returns whether a request's route administers the fleet."""
    return http.match_info.route in http.app[ADMIN_ROUTES]


def token_required(app: web.Application, client: str | None, admin: str | None) -> Middleware:
    """Returns the middleware that checks tokens, and prepares `app` for admin routes.

    As in SGLang: admin routes need the token `admin`, and without one the token `client`. Other
    routes need `client`. Without a token a route is open.
    """
    app[ADMIN_ROUTES] = set()
    wanted_of_client = None if client is None else client.encode()
    wanted_of_admin = wanted_of_client if admin is None else admin.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = wanted_of_admin if is_admin(request) else wanted_of_client
        if wanted is not None and request.path not in OPEN:
            given = request.headers.get("Authorization", "")
            scheme, _, token = given.partition(" ")
            same = hmac.compare_digest(token.encode(errors="surrogateescape"), wanted)
            if not token or not same or scheme.lower() != "bearer":
                return json_response({"error": "Unauthorized", "message": _needs(request)}, 401)
        return await handler(request)

    def _needs(request: web.Request) -> str:
        which = "admin_api_key" if admin is not None and is_admin(request) else "api_key"
        return f"{request.path} needs server.{which} as a bearer token"

    return check
