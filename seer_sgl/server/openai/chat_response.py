"""The response of `/v1/chat/completions` and the chunks of its stream. Pure."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from seer_sgl.server.calls import Call

from .bodies import ChatBody
from .engines import Facts
from .parts import OpenAIResponse, TokenBytes, chat_logprobs, ending, usage

Json = dict[str, Any]


class ChatResponse(OpenAIResponse):
    """The response to one chat."""

    name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(
        self, chat: ChatBody, calls: Sequence[Call], facts: Facts, token_bytes: TokenBytes
    ) -> None:
        super().__init__(chat, calls, facts, token_bytes)
        self._chat = chat
        self._parser = facts.tool_call_parser is not None
        self._logprobs: dict[int, list[Any]] = {}  # of tokens that are not in a chunk yet

    @override
    def chunks(self, index: int, event: Json) -> Iterator[Json]:
        if index not in self._logprobs:
            yield self._chunk(event, self._delta(index, role="assistant", content=""))
        waiting = self._logprobs.get(index, [])
        waiting += event["meta_info"].get("output_token_logprobs", [])
        self._logprobs[index] = waiting
        # SGLang sends log probabilities without a text only where engines have a parser.
        if not event["text"] and not (waiting and self._parser):
            return
        choice = self._delta(index, **({"content": event["text"]} if event["text"] else {}))
        if waiting:
            choice["logprobs"] = chat_logprobs(waiting, self._token_bytes)
            self._logprobs[index] = []
        chunk = self._chunk(event, choice)
        if self._usage_always:
            chunk["usage"] = usage([event], 1, cached=self._cached)
        yield chunk

    @override
    def last(self, events: list[Json]) -> Iterator[Json]:
        for index, event in enumerate(events):
            yield self._chunk(event, self._delta(index) | ending(event))
        if self._usage:
            chunk = self._chunk(events[-1])
            chunk["usage"] = usage(events, self._n, cached=self._cached)
            yield chunk

    def _delta(self, index: int, **delta: str) -> Json:
        return {
            "index": index,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }

    @override
    def _choice(self, index: int, event: Json) -> Json:
        chat, prompt_ids = self._chat, self._calls[index].prompt_ids
        message: Json = {
            "role": "assistant",
            "content": event["text"],
            "reasoning_content": event.get("reasoning") or None,
            "tool_calls": None,
        }
        choice: Json = {"index": index, "message": message, "logprobs": None, **ending(event)}
        calls = event.get("calls")
        if calls:
            message["tool_calls"] = [_call(number, *call) for number, call in enumerate(calls)]
            if choice["finish_reason"] == "stop":
                choice |= {"finish_reason": "tool_calls", "matched_stop": None}
        if chat.logprobs:
            triples = event["meta_info"]["output_token_logprobs"]
            choice["logprobs"] = chat_logprobs(triples, self._token_bytes)
        if chat.return_prompt_token_ids or chat.return_token_ids:
            choice["prompt_token_ids"] = prompt_ids.tolist()
        if chat.return_token_ids:
            choice["response_token_ids"] = event["output_ids"]
        if chat.return_meta_info:
            choice["meta_info"] = event["meta_info"]
        return choice


def _call(number: int, name: str | None, arguments: str) -> Json:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "index": number,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
