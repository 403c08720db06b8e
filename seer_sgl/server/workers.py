"""`/workers`: engines join and leave while requests run, with the shapes of sglang_router 0.3.2."""

from collections.abc import Sequence
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
    """The handlers of `/workers`: a worker is an engine, and its id is the engine's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def all(self, _: web.Request) -> web.Response:
        """All workers."""
        workers = [self._described(info) for info in self._infos()]
        kinds = {"prefill_count": 0, "decode_count": 0, "regular_count": len(workers)}
        return json_response({"workers": workers, "total": len(workers), "stats": kinds})

    async def get(self, http: web.Request) -> web.Response:
        """One worker."""
        info = self._find(http.match_info["id"])
        return (
            _missing(http.match_info["id"])
            if info is None
            else json_response(self._described(info))
        )

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
        """Adds an engine by its URL; answers once it serves."""
        fields = read_fields(await http.read())
        kind = field(fields, "worker_type", str, "regular")
        if kind != "regular":
            raise BadRequest(f"worker_type: {kind}; the fleet has regular workers only")
        info = await self._join(field(fields, "url", str, ""))
        where = f"/workers/{info.engine_id}"
        answer = {
            "status": "accepted",
            "worker_id": info.engine_id,
            "url": info.url,
            "location": where,
            "message": "Worker added",
        }
        response = json_response(answer, 202)
        response.headers["Location"] = where
        return response

    async def remove(self, http: web.Request) -> web.Response:
        """Begins to drain an engine; it leaves when its requests have moved on or ended."""
        engine_id = http.match_info["id"]
        if self._find(engine_id) is None:
            return _missing(engine_id)
        self._service.backend.drain(engine_id)
        answer = {
            "status": "accepted",
            "worker_id": engine_id,
            "message": "Worker removal queued for background processing",
        }
        return json_response(answer, 202)

    async def _join(self, url: str) -> EngineInfo:
        """Returns the engine at a URL once it is in the fleet. Raises HttpError or ConfigError."""
        engines = self._service.config.engines
        if isinstance(engines, StartedEngines):
            only = "only an external fleet takes more engines"
            raise Conflict(f"engines.launch: {engines.launch}; {only}")
        if not is_url(url):
            raise BadRequest(f"url: {url!r} is not of the form http://host:port")
        try:
            return await self._service.backend.join(url)
        except EngineStartError as error:
            raise BadRequest(f"url: {error}") from error

    def _infos(self) -> Sequence[EngineInfo]:
        return [engine.info for engine in self._service.fleet.engines]

    def _find(self, engine_id: str) -> EngineInfo | None:
        return next((info for info in self._infos() if info.engine_id == engine_id), None)

    def _described(self, info: EngineInfo) -> dict[str, Any]:
        """Returns a worker as the router describes it."""
        worker = {
            "id": info.engine_id,
            "url": info.url,
            "model_id": info.model_path,
            "priority": 50,  # as the router's default
            "cost": 1.0,
            "worker_type": "regular",
            "is_healthy": self._service.serves(info.engine_id),
            "load": self._service.driver.in_flight(info.engine_id),
            "connection_mode": "HTTP",
            "metadata": {
                "model_path": info.model_path,
                "dp_size": "1",
                "ranks": str(info.ranks),
                "weight_version": info.weight_version,
            },
            "disable_health_check": False,
        }
        stale = self._service.driver.stale.get(info.engine_id)
        if stale is not None:
            worker["metadata"] |= {"stale": stale}  # type: ignore[operator]
        if info.engine_id in self._service.backend.leaving:
            worker["job_status"] = {
                "job_type": "RemoveWorker",
                "worker_url": info.url,
                "status": "processing",
                "message": None,
            }
        return worker


def _missing(name: str) -> web.Response:
    return json_response({"error": f"Worker {name} not found", "code": "WORKER_NOT_FOUND"}, 404)
