"""Parts of responses that completions and chats share. Pure.

An event is a reply of `/generate` (meta_info.Reply).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from seer_sgl.server.calls import Call

from .bodies import OpenAIBody
from .engines import Facts

Json = dict[str, Any]
# Returns the bytes of a token; None if its text is all there is.
TokenBytes = Callable[[int], bytes | None]
INCOMPLETE = "\ufffd"


class OpenAIResponse(ABC):
    """The response to one request. `calls`: one per choice; `name`, `chunk_name`: the `object` of
    the response, and of the chunks of its stream."""

    name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(
        self, body: OpenAIBody, calls: Sequence[Call], facts: Facts, token_bytes: TokenBytes
    ) -> None:
        self._model, self._n = body.model, body.n
        self._calls = calls
        self._cached = facts.enable_cache_report
        self._token_bytes = token_bytes
        self._created = int(time.time())
        options = body.stream_options
        # Whether a stream ends with the usage, and whether each event has it.
        self._usage = facts.stream_response_default_include_usage
        self._usage |= options is not None and bool(options.include_usage)
        self._usage_always = options is not None and bool(options.continuous_usage_stats)

    def whole(self, events: list[Json]) -> Json:
        """Returns the response of finished events.

        That of a chat may have `reasoning`, and `calls`: names of functions and their arguments.
        """
        first = events[0]["meta_info"]
        choices = [self._choice(index, event) for index, event in enumerate(events)]
        return {
            **self._envelope(self.name, events[0], choices),
            "usage": usage(events, self._n, cached=self._cached),
            "metadata": {key: first[key] for key in ("weight_version", "weight_versions")},
            "seer": [event["meta_info"]["seer"] for event in events],
        }

    @abstractmethod
    def chunks(self, index: int, event: Json) -> Iterator[Json]:
        """Yields the chunks of a stream with what is new in a response, which the event has."""

    @abstractmethod
    def last(self, events: list[Json]) -> Iterator[Json]:
        """Yields what follows the last text. `events`: the newest of each response."""

    def _chunk(self, event: Json, *choices: Json) -> Json:
        return self._envelope(self.chunk_name, event, choices)

    def _envelope(self, name: str, event: Json, choices: Sequence[Json]) -> Json:
        return {
            "id": event["meta_info"]["id"],
            "object": name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    @abstractmethod
    def _choice(self, index: int, event: Json) -> Json: ...


def usage(events: Sequence[Json], n: int, *, cached: bool) -> Json:
    """Returns SGLang's usage (UsageProcessor). `cached`: with cached tokens.

    `events`: of each response, also of one in progress; those of one prompt follow each other.
    """
    metas = [event["meta_info"] for event in events]
    prompt = sum(meta["prompt_tokens"] for meta in metas[::n])
    completion = sum(meta["completion_tokens"] for meta in metas)
    cached_tokens = sum(meta["cached_tokens"] for meta in metas[::n]) if cached else 0
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached_tokens} if cached_tokens else None,
        "reasoning_tokens": sum(meta["reasoning_tokens"] for meta in metas),
    }


def ending(event: Json) -> Json:
    """Returns `finish_reason` and `matched_stop` of a choice."""
    reason = event["meta_info"]["finish_reason"] or {}
    return {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}


def completion_logprobs(triples: Sequence[Any], token_bytes: TokenBytes) -> Json:
    """Returns SGLang's `LogProbs` (to_openai_style_logprobs).

    `triples`: log probability, token id and text.
    """
    return {
        "text_offset": [-1] * len(triples),
        "token_logprobs": [logprob for logprob, _, _ in triples],
        "tokens": [_lossless(token, text, token_bytes) for _, token, text in triples],
        "top_logprobs": [],
    }


def chat_logprobs(triples: Sequence[Any], token_bytes: TokenBytes) -> Json:
    """Returns SGLang's `ChoiceLogprobs` (_build_token_logprobs_from_raw)."""
    content = []
    for logprob, token, text in triples:
        raw = token_bytes(token)
        spelled = (text or "").encode() if raw is None else raw
        content.append(
            {"token": text or "", "bytes": list(spelled), "logprob": logprob, "top_logprobs": []}
        )
    return {"content": content}


def _lossless(token: int, text: str | None, token_bytes: TokenBytes) -> str:
    """Returns the text of a token; for a part of a character its bytes in Latin-1."""
    if text is not None and INCOMPLETE not in text:
        return text
    raw = token_bytes(token)
    if raw is None:
        return text or ""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
    return text or ""
