"""The routes `/metrics`, `/` and `/live`."""

import secrets
from importlib.resources import files

from aiohttp import web

from seer_sgl.server.errors import BadRequest
from seer_sgl.server.json import json_response
from seer_sgl.server.service import Service

from .http import counted
from .live import live
from .monitor import ServerMonitor

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
PAGE = files("seer_sgl.server") / "page"
PAGE_FILES = {  # by path; they hold no data and need no token
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/lanes.js": ("lanes.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_monitoring_routes(app: web.Application, service: Service) -> None:
    """Adds the routes, and counts what the service does from now on."""
    monitor = ServerMonitor(service)
    boot = secrets.token_hex(8)  # the page begins again when another server answers

    async def metrics(_: web.Request) -> web.Response:
        """Returns the figures of the server in Prometheus's text format."""
        return web.Response(
            body=await monitor.metrics(),
            headers={"Content-Type": TEXT_FORMAT, "Cache-Control": "no-store"},
        )

    async def live_data(http: web.Request) -> web.Response:
        """Returns what the live page shows, from the cell `since` on of the start `boot`."""
        # Without the name of this start the page has the cells of another server, or none.
        known = http.query.get("boot") == boot
        first_cell = _number(http.query.get("since", "0")) if known else 0
        response = json_response({"boot": boot, **live(await monitor.snapshot(), first_cell)})
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def close(_: web.Application) -> None:
        monitor.close()

    app.on_cleanup.append(close)
    app.middlewares.insert(0, counted(monitor.registry))
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/live", live_data)
    for path in PAGE_FILES:
        app.router.add_get(path, _page_file)


async def _page_file(http: web.Request) -> web.Response:
    name, kind = PAGE_FILES[http.path]
    body = (PAGE / name).read_bytes()
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=PAGE_HEADERS)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise BadRequest("since: not the number of a cell")
    return int(text)
