"""SGLang's other endpoints of single requests: all of them pass through."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.admission.sampling import invalid
from seer_sgl.config import plain
from seer_sgl.engine.answers import EngineAnswer, ask
from seer_sgl.errors import EngineError
from seer_sgl.server.decode import decode, decode_fields
from seer_sgl.server.errors import BadRequest, Unavailable
from seer_sgl.server.json import dumps
from seer_sgl.server.openai.engines import Engines
from seer_sgl.server.openai.errors import with_errors
from seer_sgl.server.service import Service
from seer_sgl.types import Sampling

from .body import passthrough_body
from .media import require_no_reference
from .openai import refuse_crashing, tokens_of

# Endpoints that use KV on an engine: the ledger reserves room. By path: the most response tokens;
# None: the request sets them.
PLACED: Mapping[str, int | None] = {
    "/v1/messages": None,
    "/v1/responses": None,
    "/api/chat": None,
    "/api/generate": None,
    "/vertex_generate": None,
    "/encode": 1,
    "/classify": 1,
    "/v1/classify": 1,
    "/v1/embeddings": 1,
    "/v1/rerank": 1,
    "/v1/score": 1,
    "/v1/decisions": 1,
    "/v1/systemone": 1,
}


def _of_vertex(fields: Mapping[str, Any]) -> dict[str, Any]:
    instances, parameters = fields.get("instances"), fields.get("parameters")
    objects = (
        [one for one in instances if isinstance(one, dict)] if isinstance(instances, list) else []
    )
    name = next((name for name in INPUTS if objects and objects[0].get(name)), None)
    inputs = {} if name is None else {name: [instance.get(name) for instance in objects]}
    return inputs | (parameters if isinstance(parameters, dict) else {})


def _of_ollama(fields: Mapping[str, Any]) -> dict[str, Any]:
    options, prompt = fields.get("options"), fields.get("prompt")
    given = options if isinstance(options, dict) else {}
    params = {name: given[theirs] for theirs, name in OLLAMA.items() if theirs in given}
    system = fields.get("system")
    text = f"{system}\n\n{prompt}" if system and isinstance(prompt, str) else prompt
    blank = isinstance(text, str) and not text.strip()  # SGLang generates nothing
    return {"text": None if blank else text, "sampling_params": params}


# Ollama's options that SGLang reads (entrypoints/ollama/serving.py).
SAME = ("temperature", "top_p", "top_k", "stop", "presence_penalty", "frequency_penalty", "seed")
OLLAMA: Mapping[str, str] = {"num_predict": "max_new_tokens"} | {name: name for name in SAME}
INPUTS = ("text", "input_ids", "input_embeds")
# Endpoints whose engine makes a request of `/generate` of them, and the fields of that request.
OF_GENERATE: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "/api/generate": _of_ollama,
    "/api/chat": _of_ollama,
    "/vertex_generate": _of_vertex,
}
# Endpoints that only the tokenizer process answers.
ASKED = (
    ("POST", "/tokenize"),
    ("POST", "/v1/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/detokenize"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/parse_function_call"),
    ("POST", "/separate_reasoning"),
    ("GET", "/v1/models/{model:.+}"),
    ("GET", "/api/tags"),
    ("POST", "/api/show"),
)
# Endpoints of what one engine has stored: the first engine that has it answers.
SEARCHED = (
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
)
PUT_TOO = ("/encode", "/classify", "/v1/rerank")


class OtherPaths:
    """The handlers of these endpoints."""

    def __init__(self, service: Service, engines: Engines) -> None:
        self._service = service
        self._engines = engines

    async def placed(self, http: web.Request) -> web.StreamResponse:
        """Sends a request to an engine that has room for its KV."""
        body = await http.read()
        fields = {name: decode(raw, name) for name, raw in decode_fields(body).items()}
        require_no_reference(fields)
        budget = PLACED[http.path]
        if budget is not None:
            fields["max_tokens"] = budget
        tokens = tokens_of(fields, len(body), self._service.longest())
        await self._refuse_crashing(http.path, fields, len(body))
        reason = http.path.strip("/").replace("/", "_")
        return await self._service.pass_through(http, body, reason, tokens=tokens)

    async def _refuse_crashing(self, path: str, fields: Mapping[str, Any], size: int) -> None:
        """Raises BadRequest for what would crash an engine. `size`: of the body in bytes."""
        if path not in OF_GENERATE:
            refuse_crashing(self._service, dict(fields))
            return
        service, request = self._service, OF_GENERATE[path](fields)
        body = dumps(request)
        await service.in_thread_if_long(
            size, passthrough_body, body, service.infos(), service.texts()
        )
        if OF_GENERATE[path] is _of_ollama:
            _require_possible(request["sampling_params"])

    async def asked(self, http: web.Request) -> web.Response:
        """Sends a request to any engine."""
        body = await http.read() if http.body_exists else None
        answer = await self._engines.ask(http.method, http.path_qs, body)
        return _response(answer)

    async def searched(self, http: web.Request) -> web.Response:
        """Sends a request to one engine after the other until one knows the object."""
        body = await http.read() if http.body_exists else None
        found: EngineAnswer | None = None
        async for _, answer in self._engines.ask_each(http.method, http.path_qs, body):
            found = answer
            if answer.status != HTTPStatus.NOT_FOUND:
                break
        if found is None:
            raise Unavailable("no engine answers")
        return _response(found)

    async def open_session(self, http: web.Request) -> web.Response:
        """Opens one of SGLang's sessions on an engine, and remembers the engine."""
        body = await http.read()
        async for engine, answer in self._engines.ask_each("POST", http.path_qs, body):
            session_id = answer.decoded(str)
            if session_id is not None:
                self._service.pinned.add(session_id, engine.info.engine_id)
            return _response(answer)
        raise Unavailable("no engine answers")

    async def close_session(self, http: web.Request) -> web.Response:
        """Ends a conversation, or closes one of SGLang's own sessions."""
        body = await http.read()
        raw = decode_fields(body).get("session_id")
        name = None if raw is None else decode(raw, "session_id")
        conversation = isinstance(name, str | int) and not isinstance(name, bool)
        if conversation and self._service.generation.sessions.end(str(name)):
            return web.Response()
        engine_id = self._service.pinned.pop(name) if isinstance(name, str) else None
        engine = None if engine_id is None else self._service.engine(engine_id)
        if engine is None:
            return _response(await self._engines.ask("POST", http.path_qs, body))
        try:
            return _response(await ask(engine, "POST", http.path_qs, body))
        except EngineError as error:
            raise Unavailable(str(error)) from error


def _require_possible(parameters: Mapping[str, Any]) -> None:
    """Raises BadRequest for values that SGLang would refuse in the middle of a stream."""
    given = {name: value for name, value in parameters.items() if value is not None}
    try:
        sampling = msgspec.convert(given, Sampling)
    except msgspec.ValidationError as error:
        raise BadRequest(f"options: {plain(str(error))}") from error
    for name, why in invalid(sampling):
        raise BadRequest(f"options.{name}: {why}")


def add_other_paths(app: web.Application, service: Service, engines: Engines) -> None:
    through = OtherPaths(service, engines)
    placed, asked = with_errors(through.placed), with_errors(through.asked)
    searched = with_errors(through.searched)
    opened, closed = with_errors(through.open_session), with_errors(through.close_session)
    for path in PLACED:
        app.router.add_post(path, placed)
        if path in PUT_TOO:
            app.router.add_put(path, placed)
    for method, path in ASKED:
        app.router.add_route(method, path, asked)
    for method in ("GET", "POST"):
        app.router.add_route(method, "/open_session", opened)
        app.router.add_route(method, "/close_session", closed)
    for method, path in SEARCHED:
        app.router.add_route(method, path, searched)


def _response(answer: EngineAnswer) -> web.Response:
    headers = {"Content-Type": answer.content_type}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
