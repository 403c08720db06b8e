"""`POST /v1/completions`, as SGLang serves it (serving_completions.py)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiohttp import web
from typing_extensions import override

from seer_sgl.server.calls import Call
from seer_sgl.server.generate import SESSION_HEADER, reader, replies_of
from seer_sgl.server.generate_body import CallBatch
from seer_sgl.server.json import json_response
from seer_sgl.server.passthrough.openai import send_openai
from seer_sgl.server.passthrough.reasons import NotDivisible
from seer_sgl.server.service import Service
from seer_sgl.server.streams import finished

from .bodies import CompletionBody, read_openai
from .engines import Engines, Facts
from .events import stream_events
from .parts import OpenAIResponse, TokenBytes, completion_logprobs, ending, usage

Json = dict[str, Any]


class Completions:
    """The handler of `/v1/completions`."""

    def __init__(self, service: Service, engines: Engines) -> None:
        self._service = service
        self._engines = engines

    async def __call__(self, http: web.Request) -> web.StreamResponse:
        """Answers a request like SGLang, divided if its fields allow it."""
        body, service = await http.read(), self._service
        try:
            request = await service.in_thread_if_long(
                len(body), read_openai, body, CompletionBody, service.longest()
            )
            facts = await self._engines.facts()
            if facts.completion_template is not None:
                raise NotDivisible("completion_template")
            tokenizer = service.tokenizer
            if tokenizer is None:
                raise NotDivisible("tokenizer")
            session_id = http.headers.get(SESSION_HEADER)
            read = reader(service).batch
            batch = await service.in_thread_if_long(len(body), read, request.request(), session_id)
        except NotDivisible as error:
            return await send_openai(service, http, body, error.reason)
        prompts = _echoed(request, batch, tokenizer.response_text) if request.echo else []
        with service.started(batch.calls) as answers:
            response = CompletionResponse(
                request, batch.calls, facts, prompts, tokenizer.token_bytes
            )
            replies = replies_of(service, batch, answers, incremental=request.stream)
            if request.stream:
                return await stream_events(http, answers, replies, response)
            return json_response(response.whole(await finished(answers, replies)))


class CompletionResponse(OpenAIResponse):
    """The response to one request. `prompts`: what is put before each text; empty: nothing."""

    name = chunk_name = "text_completion"

    def __init__(
        self,
        request: CompletionBody,
        calls: Sequence[Call],
        facts: Facts,
        prompts: Sequence[str],
        token_bytes: TokenBytes,
    ) -> None:
        super().__init__(request, calls, facts, token_bytes)
        self._request = request
        self._prompts = prompts
        self._begun: set[int] = set()  # responses of which a chunk was sent

    @override
    def chunks(self, index: int, event: Json) -> Iterator[Json]:
        first = index not in self._begun
        self._begun.add(index)
        text = self._before(index) + event["text"] if first else event["text"]
        choice: Json = {"index": index, "text": text, "logprobs": None, **ending(event)}
        triples = event["meta_info"].get("output_token_logprobs")
        if triples:
            choice["logprobs"] = completion_logprobs(triples, self._token_bytes)
        if self._request.return_token_ids:
            choice["token_ids"] = event["output_ids"]
            if first:
                choice["prompt_token_ids"] = self._calls[index].prompt_ids.tolist()
        chunk = self._chunk(event, choice)
        if self._usage_always:
            chunk["usage"] = usage([event], 1, cached=False)
        yield chunk

    @override
    def last(self, events: list[Json]) -> Iterator[Json]:
        if not self._usage:
            return
        chunk = self._chunk(events[-1])
        total = usage(events, self._n, cached=self._cached)
        chunk["usage"] = {name: value for name, value in total.items() if value is not None}
        yield chunk

    @override
    def _chunk(self, event: Json, *choices: Json) -> Json:
        return super()._chunk(event, *choices) | {"usage": None}

    @override
    def _choice(self, index: int, event: Json) -> Json:
        text = self._before(index) + event["text"]
        choice: Json = {"index": index, "text": text, "logprobs": None, **ending(event)}
        if self._request.logprobs is not None:
            triples = event["meta_info"]["output_token_logprobs"]
            choice["logprobs"] = completion_logprobs(triples, self._token_bytes)
        if self._request.return_token_ids:
            choice["token_ids"] = event["output_ids"]
            choice["prompt_token_ids"] = self._calls[index].prompt_ids.tolist()
        return choice

    def _before(self, index: int) -> str:
        return self._prompts[index] if self._prompts else ""


def _echoed(
    request: CompletionBody, batch: CallBatch, write: Callable[[Sequence[int], bool], str]
) -> list[str]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt] * len(batch.calls)
    if isinstance(prompt[0], str):
        return [text for text in prompt for _ in range(request.n)]
    return [write(call.prompt_ids, True) for call in batch.calls]
