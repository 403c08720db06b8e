"""Requests that crash SGLang 0.5.21, or that it answers with nothing but a 500. Pure.

What a request may contain is in sglang_fields.py. The rules here are about values that depend on
each other, on the model or on the flags of the engines.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.engine_types import EngineInfo
from seer_sgl.sampling import Sampling

from .sampling import Reason, invalid, uncompilable, unservable
from .sglang_fields import (
    HEALTH_CHECK,
    INTERNAL,
    PER_PROMPT,
    PER_PROMPT_OF_BATCH,
    GenerateFields,
    SamplingFields,
    mistyped,
)

INPUTS = ("text", "input_ids", "input_embeds")


def crashing(fields: Mapping[str, Any], engines: Sequence[EngineInfo]) -> Iterator[Reason]:
    """Yields why a request of `/generate` would crash one of the engines.

    fields: the decoded body.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name in INTERNAL:
        if name in given:
            yield Reason(name, "SGLang sets it itself")
    try:
        request = msgspec.convert(given, GenerateFields)
    except msgspec.ValidationError as error:
        yield mistyped(error)
        return
    prompts = _prompts(request)
    session = request.session_params
    if [*prompts] == ["input_embeds"] and session is not None and session.id is not None:
        yield Reason("input_embeds", "a session of SGLang has token ids only")
    for name, count in prompts.items():
        if count == 0:
            yield Reason(name, "empty prompt" if name == "input_ids" else "no prompt")
    if len(set(prompts.values())) > 1:
        yield Reason(" and ".join(prompts), "different numbers of prompts")
    yield from _ids(request.input_ids or [], engines[0].vocab_size)
    yield from _embeds(request.input_embeds)
    yield from _lists(request, next(iter(prompts.values()), None))
    for rid in _list(request.rid):
        if rid.startswith(HEALTH_CHECK):
            yield Reason("rid", f"names that begin with {HEALTH_CHECK} are SGLang's own")
    yield from _logprobs(request, engines[0].vocab_size)
    for params in _list(request.sampling_params):
        yield from _sampling(params, engines)


def _prompts(request: GenerateFields) -> dict[str, int | None]:
    """Returns the number of prompts of each input; None for one that is not in a list."""
    counts: dict[str, int | None] = {}
    for name, depth in zip(INPUTS, (0, 1, 2), strict=True):
        value = getattr(request, name)
        if value is None or (name == "input_ids" and _in_session(request)):
            continue
        first = value
        for _ in range(depth):
            first = first[0] if isinstance(first, list) and first else None
        batch = isinstance(first, list) or (depth > 0 and not value)
        counts[name] = len(value) if batch else None
    return counts


def _in_session(request: GenerateFields) -> bool:
    """Returns whether the prompt continues a session of SGLang, which may have all of its ids."""
    if request.input_ids or request.text is not None or request.session_params is None:
        return False
    return bool(request.session_params.id)


def _ids(ids: list[Any], vocab_size: int | None) -> Iterator[Reason]:
    nested = {isinstance(entry, list) for entry in ids}
    if len(nested) > 1:
        yield Reason("input_ids", "token ids and lists of token ids")
        return
    if not all(entry for entry in ids if isinstance(entry, list)):
        yield Reason("input_ids", "empty prompt")
    for prompt in ids if True in nested else [ids]:
        highest = max(prompt, default=0)
        if vocab_size is not None and highest >= vocab_size:
            yield Reason("input_ids", f"token id {highest} is outside the vocabulary")


def _embeds(embeds: list[Any] | None) -> Iterator[Reason]:
    if embeds is None:
        return
    batch = bool(embeds[:1] and embeds[0][:1] and isinstance(embeds[0][0], list))
    for prompt in embeds if batch else [embeds]:
        widths = {len(row) if isinstance(row, list) else 0 for row in prompt}
        if (
            len(widths) != 1
            or 0 in widths
            or any(isinstance(x, list) for row in prompt for x in row)
        ):
            yield Reason("input_embeds", "must be lists of embeddings of one size")
            return


def _lists(request: GenerateFields, prompts: int | None) -> Iterator[Reason]:
    """`prompts`: their number in a batch; None: a single prompt."""
    for name in (*PER_PROMPT, *PER_PROMPT_OF_BATCH, "token_ids_logprob"):
        value = getattr(request, name)
        if not isinstance(value, list):
            continue
        if name == "token_ids_logprob":
            if not (value and isinstance(value[0], list)):
                continue
            if not all(isinstance(row, list) for row in value):
                yield Reason(name, "token ids and lists of token ids")
        if prompts is not None and len(value) != prompts:
            yield Reason(name, f"{len(value)} values for {prompts} prompts")
        elif prompts is None and name not in PER_PROMPT_OF_BATCH:
            yield Reason(name, "must be no list for a single prompt")


def _logprobs(request: GenerateFields, vocab_size: int | None) -> Iterator[Reason]:
    if request.return_logprob and any(start < -1 for start in _list(request.logprob_start_len)):
        yield Reason("logprob_start_len", "must be at least -1")
    most = vocab_size  # whether wanted or not: SGLang counts for all of a batch if one wants some
    if most is not None and any(count > most for count in _list(request.top_logprobs_num)):
        yield Reason("top_logprobs_num", f"the vocabulary has {most} tokens")


def _sampling(params: SamplingFields, engines: Sequence[EngineInfo]) -> Iterator[Reason]:
    vocab_size, min_p = engines[0].vocab_size, params.min_p or 0.0
    if 0 < min_p <= 1:
        yield from unservable(Sampling(min_p=min_p), engines, tokenizer=True)
    for token in params.stop_token_ids or ():
        # SGLang masks the stops of a whole batch if one of its requests has min_new_tokens.
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            yield Reason("stop_token_ids", f"token id {token} is outside the vocabulary")
    regexes, custom = params.stop_regex or [], params.custom_params or {}
    given = params.repetition_penalty or 0.0
    repetition = given if given > 0 else 1.0  # SGLang itself refuses others
    yield from invalid(
        Sampling(stop_regex=regexes, custom_params=custom, repetition_penalty=repetition)
    )
    yield from uncompilable(params.json_schema, params.structural_tag)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
