"""`POST /generate`, as SGLang serves it."""

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from seer_sgl.routed_experts import RoutedExperts, base64_of

from .calls import Answer
from .decode import decode_fields
from .errors import Aborted
from .generate_body import CallBatch, GenerateReader, require_few
from .json import END, EVENTS, error_fields, event_of, json_response
from .meta_info import Reply, TokenText
from .passthrough.body import PassthroughBody, passthrough_body
from .passthrough.reasons import NotDivisible
from .service import THREAD_BYTES, Service
from .streams import FAILED, as_they_come, finished, streaming

IMAGES = "image_data"
SESSION_HEADER = "X-SMG-Routing-Key"  # of SGLang's router


class Generate:
    """The handler of `/generate`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Answers a request like SGLang, divided if its fields allow it."""
        body = await http.read()
        service = self._service
        session_id = http.headers.get(SESSION_HEADER)
        try:
            batch = await service.in_thread_if_long(
                _size(body), reader(service).read, body, session_id
            )
        except NotDivisible as error:
            return await self._send(http, body, error.reason)
        with service.started(batch.calls) as answers:
            incremental = batch.stream and all(e.incremental_streaming for e in service.infos())
            replies = replies_of(service, batch, answers, incremental=incremental)
            if batch.stream:
                return await self._stream(http, batch, answers, replies)
            events = await finished(answers, replies)
            if batch.routed_experts:
                for answer, event in zip(answers, events, strict=True):
                    await _add_experts(answer, event["meta_info"])
            return json_response(events[0] if batch.single else events)

    async def _stream(
        self,
        http: web.Request,
        batch: CallBatch,
        answers: Sequence[Answer],
        replies: Sequence[Reply],
    ) -> web.StreamResponse:
        positions = as_they_come(answers)
        async with streaming(http, EVENTS) as response, contextlib.aclosing(positions):
            async for index in positions:
                answer = answers[index]
                if answer.error is not None:
                    event: dict[str, Any] = {"error": error_fields(answer.error)}
                    http[FAILED] = answer.error.status
                else:
                    event = replies[index].event()
                    if not batch.single:
                        event["index"] = index
                await response.write(event_of(event))
            await response.write(END)
        return response

    async def _send(self, http: web.Request, body: bytes, reason: str) -> web.StreamResponse:
        """Passes the request through, with a name and a seed if it has none."""
        service, infos = self._service, self._service.infos()
        texts = service.texts()
        images = service.rollout.images if infos[0].reads_images else None
        sent = await service.in_thread_if_long(
            _size(body), passthrough_body, body, infos, texts, images
        )
        require_few(len(sent.prompts) * sent.n)
        try:
            return await service.pass_through(
                http,
                sent.body,
                reason,
                tokens=(min(sum(sent.prompts), texts.longest), sent.budget),
                rids=sent.rids,
                session=sent.session,
                media=sent.media,
            )
        except Aborted:
            return _aborted(sent, service.version())


def _size(body: bytes) -> int:
    """Returns the size of a body; of one with images THREAD_BYTES at least, because an image of few
    bytes may have many pixels. Raises BadRequest for a short body that is no JSON object."""
    size = len(body)
    # By the decoded name: JSON can spell it with escapes.
    return THREAD_BYTES if size < THREAD_BYTES and IMAGES in decode_fields(body) else size


def reader(service: Service) -> GenerateReader:
    """Returns a reader of bodies for the engines that serve now."""
    first = service.infos()[0]
    return GenerateReader(
        service.texts(),
        first.vocab_size,
        experts=first.experts is not None,
        images=service.rollout.images if first.continues_images else None,
    )


def replies_of(
    service: Service, batch: CallBatch, answers: Sequence[Answer], *, incremental: bool = False
) -> list[Reply]:
    """Returns SGLang's replies to the calls of a batch, which grow with the answers.

    incremental: each reply has what is new only.
    """
    token_text: TokenText = service.token_text if batch.token_texts else lambda _: None
    version = service.version()
    return [
        Reply(
            answer,
            service.text_of(answer.call),
            logprobs=logprobs,
            token_text=token_text,
            version=version,
            incremental=incremental,
        )
        for answer, logprobs in zip(answers, batch.logprobs, strict=True)
    ]


def _aborted(sent: PassthroughBody, version: str) -> web.Response:
    """Returns SGLang's answer to a request that is aborted before an engine has it: a reply without
    tokens for each response (`_handle_abort_req`). `version`: of the weights."""
    lengths = [length for length in sent.prompts for _ in range(sent.n)]
    names = sent.rids if len(sent.rids) == len(lengths) else [uuid.uuid4().hex for _ in lengths]
    replies: list[dict[str, Any]] = []
    for index, (name, length) in enumerate(zip(names, lengths, strict=True)):
        meta: dict[str, Any] = {
            "id": name,
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "prompt_tokens": length,
            "completion_tokens": 0,
            "cached_tokens": 0,
            "weight_version": version,
        }
        if sent.logprobs:
            meta |= {"input_token_logprobs": [], "output_token_logprobs": []}
        replies.append({"text": "", "output_ids": [], "meta_info": meta})
        if sent.stream and not sent.single:
            replies[-1]["index"] = index
    if not sent.stream:
        return json_response(replies[0] if sent.single else replies)
    return web.Response(body=b"".join([*map(event_of, replies), END]), headers=EVENTS)


async def _add_experts(answer: Answer, meta: dict[str, Any]) -> None:
    """Adds the routed experts of an answer as SGLang has them; none to an answer without tokens."""
    experts = None if answer.request is None else answer.request.routed_experts
    if experts is not None:
        meta["routed_experts"] = await asyncio.to_thread(_in_sglangs_form, experts)


def _in_sglangs_form(experts: RoutedExperts) -> msgspec.Raw:
    """Returns rows as JSON: base64 of int32."""
    return msgspec.Raw(b'"%b"' % base64_of(experts.array().astype("<i4")))
