"""Read-only endpoints: health, the model, the server and the load."""

import asyncio
import secrets
import time
import uuid
from typing import Any

from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.types import Sampling, token_array

from .calls import Answer, Call
from .errors import TooMany, Unavailable
from .json import json_response
from .service import Service

HEALTH_POLL_S = 0.05
SECRETS = ("api_key", "password")  # how the names of SGLang's ServerArgs that are secrets end


class Info:
    """The handlers of the read-only endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _: web.Request) -> web.Response:
        """200 while an engine serves, else 503."""
        self._service.any_engine()
        return web.Response()

    async def ready(self, _: web.Request) -> web.Response:
        """200 while requests are sent to an engine; else 503 with the reason."""
        self._service.any_engine()
        self._service.generation.require_running()
        reasons = [hold["reason"] for hold in self._service.backend.holds.section()]
        if reasons:
            raise Unavailable(f"nothing is dispatched because of {', '.join(reasons)}")
        if self._service.driver.paused:
            raise Unavailable("nothing is dispatched: the weights are changing")
        return web.Response()

    async def health_generate(self, _: web.Request) -> web.Response:
        """200 once an engine has shown that it generates, else 503.

        A request for one token is sent, but like in SGLang any work counts: on a busy fleet that
        request waits for its turn. While a client holds generation, an engine that serves is
        enough.
        """
        service = self._service
        service.any_engine()
        if service.backend.holds:
            return web.Response()
        before = service.progress.count
        try:
            with service.started([_one_token()]) as (answer,):
                await self._until_progress(before, answer)
        except TooMany:
            await self._until_progress(before)
        return web.Response()

    async def _until_progress(self, before: int, answer: Answer | None = None) -> None:
        """Waits for work of the engines since a count of it. Raises Unavailable, and the answer's
        error."""
        timeout_s = self._service.timing.health_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._service.progress.count == before:
                    if answer is not None and answer.ended:
                        return await answer.end()
                    await asyncio.sleep(HEALTH_POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"no token within {timeout_s:g} s") from error

    async def model_info(self, _: web.Request) -> web.Response:
        """An engine's description of the model."""
        return json_response(await self._asked("/model_info"))

    async def weight_version(self, _: web.Request) -> web.Response:
        """The version of an engine's weights, as slime asks for it."""
        model = await self._asked("/model_info")
        return json_response({"weight_version": model.get("weight_version")})

    async def server_info(self, http: web.Request) -> web.Response:
        """An engine's description of itself, with the figures of the fleet and of each engine.

        The fleet is one engine at this address, of as many ranks as all together: slime derives its
        process groups and rank offsets from that, and miles compares them with its own.
        """
        info = await self._asked("/server_info")
        infos, stale = self._service.infos(), self._service.driver.stale
        ranks = sum(engine.ranks for engine in infos)
        info |= {"tp_size": ranks, "pp_size": 1, "host": http.url.host, "port": http.url.port}
        info["max_total_num_tokens"] = sum(engine.max_total_num_tokens for engine in infos)
        info["seer"] = {
            "engines": [
                {
                    "id": engine.engine_id,
                    "url": engine.url,
                    "ranks": engine.ranks,
                    "weight_version": engine.weight_version,
                    "serves": self._service.serves(engine.engine_id),
                    "stale": stale.get(engine.engine_id),
                }
                for engine in infos
            ],
            "ranks": ranks,
            "held": self._service.backend.holds.section(),
        }
        info.pop("launch_command", None)
        _empty_secrets(info)
        return json_response(info)

    async def loads(self, http: web.Request) -> web.Response:
        """The load of every engine, one entry per engine as for data parallelism.

        Requests that wait in this server count as waiting in the first entry: a client that has
        aborted everything waits until nothing is left.
        """
        query = f"?{http.query_string}" if http.query_string else ""
        engines = list(self._service.fleet.engines)
        answers = await asyncio.gather(*(self._load(engine, query) for engine in engines))
        merged: dict[str, Any] = {}
        entries: list[dict[str, Any]] = []
        for answer in answers:
            if answer is not None:
                merged = merged or {key: answer[key] for key in answer if key != "loads"}
                entries += _entries(answer)
        for rank, entry in enumerate(entries):
            entry["dp_rank"] = rank
        if not entries:
            raise Unavailable("no engine reports its load")
        first = entries[0]
        first["num_waiting_reqs"] = (first.get("num_waiting_reqs") or 0) + self._queued()
        return json_response({**merged, "loads": entries})

    async def models(self, _: web.Request) -> web.Response:
        """SGLang's list of models; any name is accepted in requests."""
        model = await self._asked("/model_info")
        name = model.get("served_model_name") or model.get("model_path")
        entry = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._service.longest(),
        }
        return json_response({"object": "list", "data": [entry]})

    def _queued(self) -> int:
        """Returns the number of responses in progress that no engine has now."""
        service = self._service
        sent = sum(service.driver.in_flight(engine.engine_id) for engine in service.driver.engines)
        return max(0, service.generation.in_progress - sent - service.pinned.running)

    async def _load(self, engine: HttpEngine, query: str) -> dict[str, Any] | None:
        try:
            answer = await self._service.description(engine, "/v1/loads" + query)
        except Unavailable:
            return None
        if engine.info.dp_size > 1:  # the server answers for all its ranks
            rank = engine.info.dp_rank
            own = [entry for entry in _entries(answer) if entry.get("dp_rank") == rank]
            answer["loads"] = own
        return answer

    async def _asked(self, path: str) -> dict[str, Any]:
        return await self._service.description(self._service.any_engine(), path)


def _entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of an answer of `/v1/loads`; without those that are no objects."""
    loads = answer.get("loads")
    return [entry for entry in loads if isinstance(entry, dict)] if isinstance(loads, list) else []


def _empty_secrets(info: dict[str, Any]) -> None:
    """Empties the keys and passwords in an engine's description of itself.

    A stock SGLang has all of its arguments there, and again in the state of each scheduler.
    """
    states = info.get("internal_states")
    parts: list[Any] = [info, *(states if isinstance(states, list) else [])]
    for part in parts:
        for name in list(part) if isinstance(part, dict) else []:
            if name.endswith(SECRETS):
                part[name] = None


def _one_token() -> Call:
    return Call(
        rid=f"health-{uuid.uuid4().hex}",
        prompt_ids=token_array([0]),
        sampling=Sampling(max_new_tokens=1, temperature=0.0),
        seed=secrets.randbits(31),
        group_id=f"health-{uuid.uuid4().hex}",
        group_size=1,
    )
