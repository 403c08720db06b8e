"""SGLang's reply to `/generate`, made of a response in progress or a finished one."""

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from seer_sgl.driver.response_text import ResponseText

from .calls import Answer

# Returns the text of a token, or None without a tokenizer.
TokenText = Callable[[int], str | None]
ABORTED = "Abort request"


class Reply:
    """The reply objects of one answer: one when it ends, or one per event of a stream.

    `text`: None without a tokenizer. `logprobs`: whether the client wants them. `version`: the
    weight version of a response without tokens. `incremental`: each object has the new text and
    tokens only, as with SGLang's --incremental-streaming-output.
    """

    def __init__(
        self,
        answer: Answer,
        text: ResponseText | None,
        *,
        logprobs: bool,
        token_text: TokenText,
        version: str,
        incremental: bool = False,
    ) -> None:
        self._answer = answer
        self._text = text
        self._logprobs = logprobs
        self._token_text = token_text
        self._version = version
        self._incremental = incremental
        self._sent = 0  # tokens in the text
        self._shown = 0  # characters of it
        self._begun = False  # the first object was made

    def event(self) -> dict[str, Any]:
        """Returns the response so far, or what is new in it; the whole one if it has ended."""
        answer = self._answer
        new = answer.ids[self._sent :]
        first = self._sent if self._incremental else 0
        self._sent = len(answer.ids)
        reply: dict[str, Any] = {}
        if self._text is not None:
            ended = answer.finish is not None
            text = self._text.end(new, answer.matched) if ended else self._text.add(new)
            reply["text"] = text[self._shown :] if self._incremental else text
            self._shown = max(self._shown, len(text))  # a stop may have been shown
        reply["output_ids"] = answer.ids[first:].tolist()
        reply["meta_info"] = self._meta_info(first)
        return reply

    def _meta_info(self, first: int) -> dict[str, Any]:
        """`first`: the first token whose log probability it has."""
        answer, totals, request = self._answer, self._answer.totals, self._answer.request
        completion = len(answer.ids)
        meta: dict[str, Any] = {
            "id": answer.call.rid,
            "finish_reason": finish_reason(answer),
            "prompt_tokens": answer.prompt_len,
            "weight_version": self._last_version(),
            "num_retractions": totals.retractions,
        }
        if self._logprobs:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = self._token_logprobs(
                answer.ids[first:], answer.logprobs[first:]
            )
            meta["output_token_logprobs_length"] = completion
        meta |= {
            "reasoning_tokens": 0,
            "completion_tokens": completion,
            "cached_tokens": min(answer.cached, answer.prompt_len),
            "cached_tokens_details": _details(answer),
            "dp_rank": None,
        }
        if not self._begun:
            self._begun = True
            meta["response_sent_to_client_ts"] = time.time()
        if answer.finish is None:
            return meta
        meta["weight_versions"] = weight_versions(answer)
        meta["e2e_latency"] = (answer.ended_at or 0.0) - answer.arrived_at
        if totals.verify_steps:
            meta["spec_verify_ct"] = totals.verify_steps
            meta["spec_accept_length"] = totals.accept_length
        meta["seer"] = {
            "chunks": totals.chunks,
            "engines": answer.engines,
            "group": "" if request is None else request.group.group_id,
            "reused_tokens": totals.reused,
            "recomputed_tokens": totals.recomputed,
        }
        return meta

    def _last_version(self) -> str:
        request = self._answer.request
        spans = self._answer.weight_spans or (request.weight_spans if request else [])
        return spans[-1].version if spans else self._version

    def _token_logprobs(
        self, ids: Sequence[int], logprobs: "array[float]"
    ) -> list[tuple[float, int, str | None]]:
        text = self._token_text
        return [(logprob, token, text(token)) for token, logprob in zip(ids, logprobs, strict=True)]


def finish_reason(answer: Answer) -> dict[str, Any] | None:
    """Returns SGLang's `finish_reason`; None while the response grows."""
    if answer.finish is None:
        return None
    if answer.finish == "stop":
        return {"type": "stop", "matched": answer.matched}
    if answer.finish == "length":
        return {"type": "length", "length": len(answer.ids)}
    return {"type": "abort", "message": ABORTED, "status_code": None, "err_type": None}


def weight_versions(answer: Answer) -> list[dict[str, Any]]:
    """Returns SGLang's `weight_versions`: the tokens from `start` to `end` of each version."""
    spans, start = [], 0
    for span in answer.weight_spans:
        spans.append({"version": span.version, "start": start, "end": start + span.tokens})
        start += span.tokens
    return spans


def _details(answer: Answer) -> dict[str, int] | None:
    """Returns where the cached prompt tokens were; None without any (get_cached_tokens_details)."""
    first = answer.first
    if first is None or not answer.cached:
        return None
    details = {"device": first.device, "host": first.host}
    return details | {"storage": first.storage} if first.storage else details
