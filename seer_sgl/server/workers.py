"""`/workers`: engines join and leave while requests run, with the shapes of sglang_router 0.3.2.

A client of a router calls the workers that it lists, past the router. So the only worker in the
list is this server: what a client asks of it, it does for all engines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from seer_sgl.backend.calls import call
from seer_sgl.config import StartedEngines
from seer_sgl.config.addresses import is_url
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineStartError

from .auth import add_admin_route
from .control.bodies import field, read_fields
from .errors import BadRequest, Conflict, Failed
from .json import json_response
from .service import Service

SERVER = "server"  # the id of the worker that is this server


def add_worker_routes(app: web.Application, service: Service) -> None:
    """Adds the routes of the fleet's engines."""
    workers = Workers(service)
    for method, path, handler in (
        ("GET", "/workers", workers.all),
        ("POST", "/workers", workers.add),
        ("GET", "/workers/{id}", workers.get),
        ("DELETE", "/workers/{id}", workers.remove),
        ("POST", "/workers/{id}/generate", workers.generate),
    ):
        add_admin_route(app, method, path, handler)


class Workers:
    """The handlers of `/workers`, and of `/workers/{id}`, where the id is an engine's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def all(self, http: web.Request) -> web.Response:
        """This server as the only worker, and the engines by their ids."""
        kinds = {"prefill_count": 0, "decode_count": 0, "regular_count": 1}
        stale = self._service.driver.stale
        engines = [self._described(info, stale) for info in self._infos()]
        answer = {"workers": [self._itself(http)], "total": 1, "stats": kinds, "engines": engines}
        return json_response(answer)

    async def get(self, http: web.Request) -> web.Response:
        name = http.match_info["id"]
        if name == SERVER:
            return json_response(self._itself(http))
        engine = self._service.engine(name)
        if engine is None:
            return _missing(name)
        return json_response(self._described(engine.info, self._service.driver.stale))

    async def generate(self, http: web.Request) -> web.Response:
        """SGLang's /generate on one worker, unmodified, which also shows what its weights are."""
        engine = self._service.engine(http.match_info["id"])
        if engine is None:
            return _missing(http.match_info["id"])
        reply = await call(engine, "POST", "/generate", await http.read())
        if reply.status is None:
            raise Failed(reply.message)
        return json_response(reply.reply, reply.status)

    async def add(self, http: web.Request) -> web.Response:
        """Adds an engine by its URL, and answers once it serves. This server is there already."""
        fields = read_fields(await http.read())
        kind = field(fields, "worker_type", str, "regular")
        if kind != "regular":
            raise BadRequest(f"worker_type: {kind}; the fleet has regular workers only")
        url = field(fields, "url", str, "").rstrip("/")
        if url == _own_url(http):
            name = SERVER
        else:
            info = await self._join(url, http)
            name, url = info.engine_id, info.url
        where = f"/workers/{name}"
        answer = {
            "status": "accepted",
            "worker_id": name,
            "url": url,
            "location": where,
            "message": "Worker added",
        }
        response = json_response(answer, 202)
        response.headers["Location"] = where
        return response

    async def remove(self, http: web.Request) -> web.Response:
        """Begins to drain an engine; it leaves when its requests have moved on or ended."""
        engine_id = http.match_info["id"]
        if engine_id == SERVER:
            raise Conflict("this server does not leave; name an engine of GET /workers")
        if self._service.engine(engine_id) is None:
            return _missing(engine_id)
        self._service.backend.drain(engine_id)
        answer = {
            "status": "accepted",
            "worker_id": engine_id,
            "message": "Worker removal queued for background processing",
        }
        return json_response(answer, 202)

    async def _join(self, url: str, http: web.Request) -> EngineInfo:
        """Returns the engine at a URL once it is in the fleet. Raises HttpError or ConfigError."""
        engines = self._service.config.engines
        if isinstance(engines, StartedEngines):
            only = f"only an external fleet takes more engines; this server is {_own_url(http)}"
            raise Conflict(f"engines.launch: {engines.launch}; {only}")
        if not is_url(url):
            raise BadRequest(f"url: {url!r} is not of the form http://host:port")
        try:
            return await self._service.backend.join(url)
        except EngineStartError as error:
            raise BadRequest(f"url: {error}") from error

    def _infos(self) -> Sequence[EngineInfo]:
        return [engine.info for engine in self._service.fleet.engines]

    def _itself(self, http: web.Request) -> dict[str, Any]:
        """Returns this server as the router describes a worker, under the name that the client
        used."""
        service, infos = self._service, self._infos()
        return {
            **_worker(SERVER, _own_url(http), infos[0].model_path if infos else ""),
            "is_healthy": any(service.serves(info.engine_id) for info in infos),
            "load": service.generation.in_progress,
            "metadata": {
                "dp_size": "1",
                "ranks": str(sum(info.ranks for info in infos)),
                "weight_version": infos[0].weight_version if infos else "",
            },
        }

    def _described(self, info: EngineInfo, stale: Mapping[str, str]) -> dict[str, Any]:
        """Returns an engine as the router describes a worker. `stale`: of the driver."""
        worker = {
            **_worker(info.engine_id, info.url, info.model_path),
            "is_healthy": self._service.serves(info.engine_id),
            "load": self._service.driver.in_flight(info.engine_id),
            "metadata": {
                "model_path": info.model_path,
                "dp_size": str(info.dp_size),
                "dp_rank": str(info.dp_rank),
                "ranks": str(info.ranks),
                "weight_version": info.weight_version,
            },
        }
        if info.engine_id in stale:
            worker["metadata"] |= {"stale": stale[info.engine_id]}
        if info.engine_id in self._service.backend.leaving:
            worker["job_status"] = {
                "job_type": "RemoveWorker",
                "worker_url": info.url,
                "status": "processing",
                "message": None,
            }
        return worker


def _own_url(http: web.Request) -> str:
    return f"{http.scheme}://{http.host}"


def _worker(name: str, url: str, model: str) -> dict[str, Any]:
    """Returns the fields of a worker that are the same for all of them, but for the names."""
    return {
        "id": name,
        "url": url,
        "model_id": model,
        "priority": 50,  # as the router's default
        "cost": 1.0,
        "worker_type": "regular",
        "connection_mode": "HTTP",
        "disable_health_check": False,
    }


def _missing(name: str) -> web.Response:
    return json_response({"error": f"Worker {name} not found", "code": "WORKER_NOT_FOUND"}, 404)
