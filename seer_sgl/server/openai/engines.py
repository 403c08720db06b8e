"""Asks engines what only they know: how they render a chat, parse a tool call, and were started."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from seer_sgl.engine.answers import AnswerLate, EngineAnswer, ask
from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import EngineError
from seer_sgl.rollout.reading import CHAT, Tokens
from seer_sgl.server.decode import decode_fields
from seer_sgl.server.errors import Unavailable
from seer_sgl.server.service import Service

from .defaults import sampling_defaults

# Bytes of a body that may be what holds an engine: it tokenizes about a megabyte per second.
HOLDING_BYTES = 1 << 20


class Facts(msgspec.Struct, kw_only=True):
    """How an engine was started, as far as responses depend on it (`ServerArgs`).

    `defaults`: of sampling parameters in a chat; None if they are unknown. `jinja`: whether prompts
    of chats come from the tokenizer's own template: other templates add stop strings.
    """

    enable_cache_report: bool = False
    stream_response_default_include_usage: bool = False
    completion_template: str | None = None
    chat_template: str | None = None
    default_chat_template_kwargs: Any = None
    return_input_ids: bool = False
    return_output_ids: bool = False
    sampling_defaults: str = "model"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    enable_strict_thinking: bool | None = None
    model_type: str | None = None
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    defaults: dict[str, float] | None = None
    jinja: bool = False


class ParsedCall(msgspec.Struct):
    """A call of a function in a response."""

    name: str | None
    parameters: str


class ParsedCalls(msgspec.Struct):
    """The reply to `/parse_function_call`."""

    normal_text: str
    calls: list[ParsedCall]


class Engines:
    """The engines of a service, which are asked in turn."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turn = itertools.count()
        self._facts: dict[tuple[str, str | None], Facts] = {}  # by engine and its start

    async def ask(self, method: str, path: str, body: bytes | None = None) -> EngineAnswer:
        """Returns the answer of one engine. Raises Unavailable if no engine answers."""
        _, answer = await anext(self.ask_each(method, path, body))
        return answer

    async def ask_each(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncGenerator[tuple[HttpEngine, EngineAnswer], None]:
        """Yields one engine after the other, and its answer; those that do not answer are skipped.

        A long body that one engine has not answered in time is not given to the next one: it may be
        what holds the engine. Raises Unavailable then, and if none answers.
        """
        engines, turn, answers = self._service.serving(), next(self._turn), 0
        for number in range(len(engines)):
            engine = engines[(turn + number) % len(engines)]
            with contextlib.suppress(EngineError):
                try:
                    answer = await ask(engine, method, path, body)
                except AnswerLate as error:
                    if len(body or b"") < HOLDING_BYTES:
                        raise
                    raise Unavailable(str(error)) from error
                answers += 1
                yield engine, answer
        if not answers:
            raise Unavailable("no engine answers")

    async def until_they_generate(self) -> None:
        """Returns when no client holds generation: engines must stay idle while weights change."""
        await self._service.backend.holds.over()

    async def facts(self) -> Facts:
        """Returns the facts of the first engine that serves. Raises Unavailable."""
        engine = self._service.any_engine()
        key = (engine.info.engine_id, engine.info.instance)
        known = self._facts.get(key)
        if known is None:
            known = await self._read_facts(engine)
            self._facts = {key: known}
        if not known.jinja:
            known.jinja = await self._renders_as_we_do(known)
        return known

    async def render(self, body: bytes) -> list[int] | None:
        """Returns the prompt that engines make of a chat's body; None if they refuse it."""
        fields = decode_fields(body)
        # SGLang tokenizes no streams, and knows no session whose name is a number.
        fields = {name: raw for name, raw in fields.items() if name not in ("stream", "session_id")}
        body = msgspec.json.encode(fields)
        tokens = (await self.ask("POST", "/v1/tokenize", body)).decoded(Tokens)
        return None if tokens is None else tokens.tokens

    async def parse_calls(
        self, text: str, tools: list[dict[str, Any]], parser: str
    ) -> ParsedCalls | None:
        """Returns the calls of functions in a text; None if the engine's parser fails."""
        wanted = {"text": text, "tools": tools, "tool_call_parser": parser}
        body = msgspec.json.encode(wanted)
        answer = await self.ask("POST", "/parse_function_call", body)
        return answer.decoded(ParsedCalls)

    async def _read_facts(self, engine: HttpEngine) -> Facts:
        merged: dict[str, Any] = {}
        for path in ("/server_info", "/model_info"):
            merged |= await self._service.description(engine, path)
        known = {name: merged[name] for name in Facts.__struct_fields__ if name in merged}
        try:
            facts = msgspec.convert(known, Facts)
        except msgspec.ValidationError as error:
            raise Unavailable(f"engine {engine.info.engine_id}: {error}") from error
        facts.defaults = {}
        if facts.sampling_defaults == "model":
            path = self._service.config.model.path or engine.info.model_path
            facts.defaults = await asyncio.to_thread(sampling_defaults, path)
        return facts

    async def _renders_as_we_do(self, facts: Facts) -> bool:
        if facts.chat_template is not None:
            return facts.chat_template.endswith(".jinja")
        if self._service.tokenizer is None:
            return False
        try:
            ours = self._service.tokenizer.apply_chat_template(CHAT)
        except ValueError:
            return False
        return await self.render(msgspec.json.encode({"messages": CHAT})) == list(ours)
