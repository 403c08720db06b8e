"""Parts of responses that completions and chats share. Pure.

An event is a reply of `/generate` (meta_info.Reply).
"""

from collections.abc import Callable, Sequence
from typing import Any

from .engines import Facts

Json = dict[str, Any]
# Returns the bytes of a token; None if its text is all there is.
TokenBytes = Callable[[int], bytes | None]
INCOMPLETE = "\ufffd"


def usage(events: Sequence[Json], n: int, *, cached: bool) -> Json:
    """Returns SGLang's usage (UsageProcessor). `cached`: with cached tokens.

    `events`: of each response; those of one prompt follow each other.
    """
    prompts = [event["meta_info"] for event in events[::n]]
    tokens = sum(meta["prompt_tokens"] for meta in prompts)
    return _usage(
        tokens,
        sum(event["meta_info"]["completion_tokens"] for event in events),
        sum(meta["cached_tokens"] for meta in prompts) if cached else 0,
        sum(event["meta_info"]["reasoning_tokens"] for event in events),
    )


def usage_so_far(event: Json, *, cached: bool) -> Json:
    """Returns the usage of one response in progress."""
    meta = event["meta_info"]
    cached_tokens = meta["cached_tokens"] if cached else 0
    return _usage(
        meta["prompt_tokens"], meta["completion_tokens"], cached_tokens, meta["reasoning_tokens"]
    )


def _usage(prompt: int, completion: int, cached: int, reasoning: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached} if cached else None,
        "reasoning_tokens": reasoning,
    }


def ending(event: Json) -> Json:
    """Returns `finish_reason` and `matched_stop` of a choice."""
    reason = event["meta_info"]["finish_reason"] or {}
    return {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}


def metadata(event: Json) -> Json:
    """Returns the weight versions of a response."""
    meta = event["meta_info"]
    return {"weight_version": meta["weight_version"], "weight_versions": meta["weight_versions"]}


def wants_usage(options: Any, facts: Facts) -> tuple[bool, bool]:
    """Returns whether a stream ends with the usage, and whether each event has it."""
    default = facts.stream_response_default_include_usage
    if options is None:
        return default, False
    return bool(options.include_usage) or default, bool(options.continuous_usage_stats)


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
