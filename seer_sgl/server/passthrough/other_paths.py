"""SGLang's other endpoints of single requests: all of them pass through."""

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from seer_sgl.engine.answers import EngineAnswer, ask
from seer_sgl.errors import EngineError
from seer_sgl.server.decode import decode, decode_fields
from seer_sgl.server.errors import BadRequest, Unavailable
from seer_sgl.server.generate_body import require_short_chat
from seer_sgl.server.json import dumps
from seer_sgl.server.openai.engines import Engines
from seer_sgl.server.openai.errors import with_errors
from seer_sgl.server.pinned import PinnedSession
from seer_sgl.server.prompt_texts import PromptTexts
from seer_sgl.server.service import Service

from .media import require_no_reference
from .openai import MESSAGES, RESPONSES, read_at, refuse_crashing, tokens_of

SCORE = "/v1/score"
# Bytes of a body that only a tokenizer process reads: about 16 s, in which it does nothing else.
MOST_ASKED = 1 << 24
SHORT = 64  # characters of a query that is read with each item
# Endpoints that use KV on an engine: the ledger reserves room. By path: the most response tokens;
# None: the request sets them.
PLACED: Mapping[str, int | None] = {
    MESSAGES: None,
    RESPONSES: None,
    "/encode": 1,
    "/classify": 1,
    "/v1/classify": 1,
    "/v1/embeddings": 1,
    "/v1/rerank": 1,
    SCORE: 1,
    "/v1/decisions": 1,
    "/v1/systemone": 1,
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
)
# Endpoints of what one engine has stored: the first engine that has it answers.
SEARCHED = (
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
)
# Fields of them with texts, or lists of texts of which each is a prompt.
TEXTS = ("input", "text", "query", "documents", "items")
PUT_TOO = ("/encode", "/classify", "/v1/rerank")


class OtherPaths:
    """The handlers of these endpoints."""

    def __init__(self, service: Service, engines: Engines) -> None:
        self._service = service
        self._engines = engines

    async def placed(self, http: web.Request) -> web.StreamResponse:
        """Sends a request to an engine that has room for its KV."""
        body = await http.read()
        tokens = await self._service.in_thread_if_long(len(body), self._tokens, http.path, body)
        reason = http.path.strip("/").replace("/", "_")
        return await self._service.pass_through(http, body, reason, tokens=tokens)

    def _tokens(self, path: str, body: bytes) -> tuple[int, int]:
        """Returns about how many tokens prompt and response have. Raises BadRequest."""
        fields = {name: decode(raw, name) for name, raw in decode_fields(body).items()}
        require_no_reference(fields)
        fields = read_at(path, fields)
        for name in TEXTS:
            for text in _listed(fields.get(name)):
                if isinstance(text, str):  # not each of many token ids
                    require_short_chat(text, self._service.longest(), name)
        budget = PLACED[path]
        if budget is not None:
            fields["max_tokens"] = budget
        asked = fields | _scored(fields) if path == SCORE else fields
        refuse_crashing(self._service, path, asked)
        if path == SCORE:
            _require_tokens(fields, self._service.texts())
        return tokens_of(fields, len(body), self._service.longest())

    async def asked(self, http: web.Request) -> web.Response:
        """Sends a request to any engine. Raises BadRequest for one that would hold it too long."""
        body = await http.read() if http.body_exists else None
        if len(body or b"") > MOST_ASKED:
            raise BadRequest(f"the body has more than {MOST_ASKED} bytes: split it")
        answer = await self._engines.ask(http.method, http.path_qs, body)
        return _response(answer)

    async def searched(self, http: web.Request) -> web.Response:
        """Sends a request to one engine after the other until one knows the object."""
        body = await http.read() if http.body_exists else None
        async for _, answer in self._engines.ask_each(http.method, http.path_qs, body):
            if answer.status != HTTPStatus.NOT_FOUND:
                break
        return _response(answer)

    async def open_session(self, http: web.Request) -> web.Response:
        """Opens one of SGLang's sessions on an engine, and remembers the engine."""
        body = await http.read()
        engine, answer = await anext(self._engines.ask_each("POST", http.path_qs, body))
        session_id = answer.decoded(str)
        if session_id is not None:
            self._service.pinned.add(session_id, engine.info.engine_id)
        return _response(answer)

    async def close_session(self, http: web.Request) -> web.Response:
        """Ends a conversation, or closes one of SGLang's own sessions."""
        body = await http.read()
        raw = decode_fields(body).get("session_id")
        name = None if raw is None else decode(raw, "session_id")
        conversation = isinstance(name, str | int) and not isinstance(name, bool)
        if conversation and self._service.generation.sessions.end(str(name)):
            return web.Response()
        session = self._service.pinned.of({"id": name})
        if session is not None and session.media and (session.running or session.left):
            self._service.in_background(self._close_idle(session, http.path_qs, body))
            return web.Response()
        engine_id = self._service.pinned.pop(name) if isinstance(name, str) else None
        engine = None if engine_id is None else self._service.engine(engine_id)
        if engine is None:
            return _response(await self._engines.ask("POST", http.path_qs, body))
        try:
            return _response(await ask(engine, "POST", http.path_qs, body))
        except EngineError as error:
            raise Unavailable(str(error)) from error

    async def _close_idle(self, session: PinnedSession, path: str, body: bytes) -> None:
        """Closes a session of images once none of its turns runs.

        SGLang takes the images at once, also those of a turn that waits (`SessionController
        ._close`), and fails at its placeholders, which are no tokens.
        """
        if session.idle is not None:
            return  # it is being closed
        session.idle = asyncio.Event()
        if session.running:
            await session.idle.wait()
        engine = self._service.engine(session.engine_id)
        if engine is not None:
            with contextlib.suppress(EngineError):  # its sessions have ended
                for rid in session.left:  # or has the engine ended it?
                    await ask(engine, "POST", "/abort_request", dumps({"rid": rid}))
                await ask(engine, "POST", path, body)
        name = decode(decode_fields(body)["session_id"], "session_id")
        if self._service.pinned.of({"id": name}) is session:  # else it was opened again
            self._service.pinned.pop(name)


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


def _scored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the token ids in a body of SCORE as prompts, for SGLang does not check them: its
    prompts are the query followed by each item. Raises BadRequest for embeddings, whose width it
    does not check either."""
    for name in ("query_embed_overrides", "item_embed_overrides"):
        if fields.get(name) is not None:
            raise BadRequest(f"{name}: an engine would fail if their size is not that of the model")
    query, items = fields.get("query") or [], fields.get("items")
    if not (isinstance(items, list) and items and isinstance(items[0], list)):
        return {"prompt": [query]} if isinstance(query, list) and query else {}
    if not isinstance(query, list) or not query:
        return {"prompt": items}
    return {"prompt": [query, *(item for item in items if item)]}


def _require_tokens(fields: Mapping[str, Any], texts: PromptTexts) -> None:
    """Raises BadRequest for a text to score that has no token: it would crash an engine. SGLang
    itself refuses an empty one."""
    query, items = fields.get("query") or "", fields.get("items")
    given = _listed(items)
    listed = [item for item in given if isinstance(item, str)]
    if not isinstance(query, str) or len(listed) < len(given):
        return
    if len(query) > SHORT:  # not read again with each item
        if texts.ids(query, "query"):
            return
        query = query[:SHORT]
    first = bool(fields.get("item_first"))
    texts.lengths("items", (item + query if first else query + item for item in listed))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _response(answer: EngineAnswer) -> web.Response:
    headers = {"Content-Type": answer.content_type}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
