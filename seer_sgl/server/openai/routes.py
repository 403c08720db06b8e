"""The routes of OpenAI's endpoints."""

from aiohttp import web

from seer_sgl.server.passthrough.other_paths import add_other_paths
from seer_sgl.server.service import Service

from .chats import Chats
from .completions import Completions
from .engines import Engines
from .errors import with_errors


def add_openai_routes(app: web.Application, service: Service) -> None:
    engines = Engines(service)
    chats = with_errors(Chats(service, engines))
    app.router.add_post("/v1/completions", with_errors(Completions(service, engines)))
    app.router.add_post("/v1/chat/completions", chats)
    app.router.add_post("/invocations", chats)
    add_other_paths(app, service, engines)
