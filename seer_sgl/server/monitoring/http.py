"""Counts the HTTP requests by route, method and status."""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter

from seer_sgl.server.streams import FAILED

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
OTHER = "other"  # no route, or an unusual method: a client must not choose the number of series
LEFT = "client left"  # instead of a status


def counted(registry: CollectorRegistry) -> Middleware:
    """Returns the middleware; it must be the outermost one."""
    requests = Counter(
        "seer_http_requests_total",
        f"Answered HTTP requests by route template, method and status; status {LEFT!r}: the client "
        "hung up before the end of the answer. A stream that fails half-way counts with the status "
        "of its failure.",
        ["route", "method", "status"],
        registry=registry,
    )

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = "500"
        try:
            response = await handler(request)
            status = str(response.status)
            return response
        except web.HTTPException as error:
            status = str(error.status)
            raise
        except (asyncio.CancelledError, ConnectionError):
            status = LEFT
            raise
        finally:
            method = request.method if request.method in METHODS else OTHER
            requests.labels(_route(request), method, request.get(FAILED, status)).inc()

    return count


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return OTHER if resource is None else resource.canonical
