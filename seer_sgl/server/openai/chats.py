"""`POST /v1/chat/completions`, as SGLang serves it (serving_chat.py).

An engine renders the prompt and parses calls of functions; only the tokens are generated here.
"""

from typing import Any

from aiohttp import web

from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.rollout.reading import CHAT
from seer_sgl.server.generate import SESSION_HEADER, reader, replies_of
from seer_sgl.server.json import json_response
from seer_sgl.server.passthrough.openai import send_openai
from seer_sgl.server.passthrough.reasons import NotDivisible
from seer_sgl.server.passthrough.send import OWN
from seer_sgl.server.service import Service
from seer_sgl.server.streams import finished

from .bodies import DEFAULTS, ChatBody, read_openai
from .chat_response import ChatResponse
from .engines import Engines, Facts
from .events import stream_events
from .reasoning import Reasoning

Json = dict[str, Any]
# Models and parsers for which SGLang's chat endpoint does more than this module knows: it changes
# sampling parameters, adds a grammar, or numbers the calls of functions.
SPECIAL_MODELS = ("gpt_oss", "gemma4", "gemma4_unified")
SPECIAL_PARSERS = ("glm47", "inkling", "kimi_k2", "kimi_k3")
# Variables of a chat template that SGLang itself reads.
READ_BY_SGLANG = ("reasoning_effort", "spaces_between_special_tokens")


class Chats:
    """The handler of `/v1/chat/completions`."""

    def __init__(self, service: Service, engines: Engines) -> None:
        self._service = service
        self._engines = engines
        self._reasoning: Reasoning | None = None

    async def __call__(self, http: web.Request) -> web.StreamResponse:
        """Answers a request like SGLang, divided if its fields allow it."""
        body, service = await http.read(), self._service
        prompt_ids: list[int] | None = None
        try:
            chat = await service.in_thread_if_long(
                len(body), read_openai, body, ChatBody, service.longest()
            )
            if any(name.lower().startswith(OWN) for name in http.headers):
                raise NotDivisible("sglext")
            facts = await self._engines.facts()
            tokenizer = service.tokenizer
            if tokenizer is None:
                raise NotDivisible("tokenizer")
            require_divisible(chat, facts)
            reasoning = self._reasoning_of(facts, tokenizer)
            mode = None if reasoning is None else await reasoning.mode(chat)
            prompt_ids = await self._prompt(body, chat, facts, tokenizer)
            request = chat.request(prompt_ids, {**DEFAULTS, **(facts.defaults or {})})
            read, session_id = reader(service).batch, http.headers.get(SESSION_HEADER)
            batch = await service.in_thread_if_long(len(body), read, request, session_id)
        except NotDivisible as error:
            known = None if prompt_ids is None else len(prompt_ids)
            return await send_openai(service, http, body, error.reason, known)
        with service.started(batch.calls) as answers:
            response = ChatResponse(chat, batch.calls, facts, tokenizer.token_bytes)
            replies = replies_of(service, batch, answers, incremental=chat.stream)
            if chat.stream:
                return await stream_events(http, answers, replies, response)
            events = await finished(answers, replies)
            for event in events:
                if reasoning is not None and mode is not None:
                    await reasoning.take(event, mode, separate=chat.separate_reasoning)
                if chat.uses_tools and facts.tool_call_parser is not None:
                    await self._take_calls(event, chat, facts.tool_call_parser)
            return json_response(response.whole(events))

    def _reasoning_of(self, facts: Facts, tokenizer: Tokenizer) -> Reasoning | None:
        """Returns the reasoning parser of the engines; None if they have none."""
        if facts.reasoning_parser is None:
            return None
        if self._reasoning is None or self._reasoning.facts is not facts:
            self._reasoning = Reasoning(self._engines, tokenizer, facts)
        return self._reasoning

    async def _prompt(
        self, body: bytes, chat: ChatBody, facts: Facts, tokenizer: Tokenizer
    ) -> list[int]:
        """Returns the prompt of a chat. Raises NotDivisible if the engines refuse it."""
        ids = await self._engines.render(body)
        if ids is None:
            raise NotDivisible("messages")
        multimodal = facts.has_image_understanding or facts.has_audio_understanding
        if multimodal and chat.input_ids is None and not _lossy_as_text(tokenizer):
            # SGLang gives such a model the rendered prompt as text.
            return tokenizer.encode(tokenizer.decode(ids)).tolist()
        return ids

    async def _take_calls(self, event: Json, chat: ChatBody, parser: str) -> None:
        """Moves calls of functions out of a text (`_process_tool_calls`)."""
        found = await self._engines.parse_calls(event["text"], chat.tools or [], parser)
        if found is None:
            return
        event["text"] = found.normal_text
        event["calls"] = [(call.name, call.parameters) for call in found.calls]


def _lossy_as_text(tokenizer: Tokenizer) -> bool:
    """Returns whether the text of a chat has other tokens (`_probe_prompt_text_round_trip`)."""
    try:
        text = tokenizer.chat_text(CHAT)
        return tokenizer.encode_part(text) != tokenizer.apply_chat_template(CHAT)
    except ValueError:
        return False


def require_divisible(chat: ChatBody, facts: Facts) -> None:
    """Raises NotDivisible if SGLang's chat endpoint does more than generate tokens of a prompt."""
    if facts.defaults is None and any(getattr(chat, name) is None for name in DEFAULTS):
        raise NotDivisible("generation_config")
    if not facts.jinja and chat.input_ids is None:
        raise NotDivisible("chat_template")
    if facts.model_type in SPECIAL_MODELS:
        raise NotDivisible("model_type")
    if chat.stream and (
        chat.return_token_ids or chat.return_prompt_token_ids or chat.return_meta_info
    ):
        raise NotDivisible("stream")  # SGLang refuses it
    if facts.return_input_ids or facts.return_output_ids:
        raise NotDivisible("sglext")
    for variables in (chat.chat_template_kwargs, facts.default_chat_template_kwargs):
        if not isinstance(variables, dict | None):
            raise NotDivisible("chat_template_kwargs")
        for name in READ_BY_SGLANG:
            if name in (variables or {}):
                raise NotDivisible(name)
    _require_plain_messages(chat)
    _require_free_tools(chat, facts)


def _require_plain_messages(chat: ChatBody) -> None:
    """Raises NotDivisible for messages with more than text."""
    for message in chat.messages:
        if message.get("tools"):
            raise NotDivisible("tools")
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", None):
                raise NotDivisible(kind if isinstance(kind, str) else "content")


def _require_free_tools(chat: ChatBody, facts: Facts) -> None:
    """Raises NotDivisible if tools need a grammar, or a parser of a stream."""
    if chat.tool_choice not in (None, "auto", "none"):
        raise NotDivisible("tool_choice")
    if facts.tool_call_parser == "glm47":
        raise NotDivisible("tool_call_parser")  # a grammar even without tools
    if not chat.uses_tools or facts.tool_call_parser is None:
        return
    if facts.tool_call_parser in SPECIAL_PARSERS:
        raise NotDivisible("tool_call_parser")
    if chat.stream or any(_strict(tool) for tool in chat.tools or []):
        raise NotDivisible("tools")


def _strict(tool: Json) -> bool:
    function = tool.get("function")
    return isinstance(function, dict) and bool(function.get("strict"))
