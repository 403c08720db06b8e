"""`POST /generate`, as SGLang serves it."""

import secrets
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine.stream import DONE, PREFIX

from .calls import Answer
from .errors import BadRequest
from .generate_body import (
    DEFAULT_NEW_TOKENS,
    Batch,
    GenerateReader,
    Undividable,
    decode_fields,
)
from .json import EVENTS, dumps, error_fields, json_response
from .meta_info import Reply
from .service import Service
from .streams import as_they_come

SESSION_HEADER = "X-SMG-Routing-Key"  # of SGLang's router


class Generate:
    """The handler of `/generate`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Answers a request like SGLang, divided if its fields allow it."""
        body = await http.read()
        service = self._service
        try:
            batch = reader(service).read(body, http.headers.get(SESSION_HEADER))
        except Undividable as undividable:
            return await self._forward(http, body, undividable.reason)
        with service.started(batch.calls) as answers:
            replies = replies_of(service, batch, answers)
            if batch.stream:
                return await self._stream(http, batch, answers, replies)
            for answer in answers:
                await answer.end()
            events = [reply.event() for reply in replies]
            return json_response(events[0] if batch.single else events)

    async def _stream(
        self,
        http: web.Request,
        batch: Batch,
        answers: Sequence[Answer],
        replies: Sequence[Reply],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(http)
        async for index in as_they_come(answers):
            answer = answers[index]
            if answer.error is not None:
                event: dict[str, Any] = {"error": error_fields(answer.error)}
            else:
                event = replies[index].event()
                if not batch.single:
                    event["index"] = index
            await response.write(PREFIX + b" " + dumps(event) + b"\n\n")
        await response.write(PREFIX + b" " + DONE + b"\n\n")
        return response

    async def _forward(self, http: web.Request, body: bytes, reason: str) -> web.StreamResponse:
        """Sends the request to an engine as it is, with a name and a seed if it has none."""
        service, fields = self._service, decode_fields(body)
        known = {name: _value(fields.get(name)) for name in READ}
        self._require_harmless(known)
        tokens = _tokens(known, service.tokenizer, service.longest())
        if known["rid"] is None:
            known["rid"] = uuid.uuid4().hex
            fields["rid"] = msgspec.Raw(dumps(known["rid"]))
        if any(info.deterministic for info in service.infos()):
            seeded = _seeded(known["sampling_params"])
            if seeded is not None:
                fields["sampling_params"] = msgspec.Raw(dumps(seeded))
        rid = known["rid"]
        rids = tuple(rid) if isinstance(rid, list) else (rid,)
        names = tuple(name for name in rids if isinstance(name, str))
        pinned = service.pinned.engine_of(known["session_params"])
        return await service.forward(
            http, dumps(fields), reason, tokens=tokens, rids=names, engine_id=pinned
        )

    def _require_harmless(self, known: dict[str, Any]) -> None:
        """Raises BadRequest for what would end an engine."""
        parameters = known["sampling_params"]
        for params in parameters if isinstance(parameters, list) else [parameters]:
            min_p = params.get("min_p") if isinstance(params, dict) else None
            if isinstance(min_p, int | float) and min_p > 0:
                self._service.require_servable_min_p(min_p)


def reader(service: Service) -> GenerateReader:
    """Returns a reader of bodies for the engines that serve now."""
    tokenizer = service.tokenizer
    return GenerateReader(
        None if tokenizer is None else tokenizer.encode,
        service.longest(),
        service.settings.max_batch,
        service.infos()[0].vocab_size,
    )


def replies_of(service: Service, batch: Batch, answers: Sequence[Answer]) -> list[Reply]:
    """Returns SGLang's replies to the calls of a batch, which grow with the answers."""
    token_text = service.token_text if batch.token_texts else _no_text
    return [
        Reply(
            answer,
            service.text_of(answer.call),
            logprobs=logprobs,
            token_text=token_text,
            version=service.version(),
        )
        for answer, logprobs in zip(answers, batch.logprobs, strict=True)
    ]


# The fields of an undivided request that the server itself reads.
READ = ("rid", "text", "input_ids", "input_embeds", "sampling_params", "session_params")


def _value(raw: msgspec.Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def _seeded(parameters: Any) -> Any:
    """Returns sampling parameters with a seed each; None if they have seeds or are unusual.

    A deterministic SGLang gives all requests without a seed the same one.
    """
    if isinstance(parameters, list):
        each = [_seeded(params) or params for params in parameters]
        return None if each == parameters else each
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict) or parameters.get("sampling_seed") is not None:
        return None
    return {**parameters, "sampling_seed": secrets.randbits(31)}


def _tokens(known: dict[str, Any], tokenizer: Tokenizer | None, longest: int) -> tuple[int, int]:
    """Returns the tokens of prompt and response for which the KV ledger must have room."""
    text, ids = known["text"], known["input_ids"] or known["input_embeds"] or []
    texts = text if isinstance(text, list) else [text]
    if text is not None:
        prompts = [_length(each, tokenizer) for each in texts]
    else:
        prompts = [len(each) if isinstance(each, list) else 1 for each in _list(ids)]
    parameters = known["sampling_params"]
    params = parameters[0] if isinstance(parameters, list) and parameters else parameters
    params = params if isinstance(params, dict) else {}
    budget = params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    budget = budget if isinstance(budget, int) else longest
    n = params.get("n")
    count = max(1, len(texts) if text is not None else 1) * (n if isinstance(n, int) else 1)
    return min(sum(prompts), longest), min(max(1, budget * max(1, count)), longest)


def _length(text: Any, tokenizer: Tokenizer | None) -> int:
    if not isinstance(text, str):
        return 1
    return len(text) if tokenizer is None else len(tokenizer.encode(text))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _no_text(_: int) -> str | None:
    return None
