"""Requests that would end SGLang 0.5.21, or that it answers with nothing but a 500. Pure.

What a request may contain is in sglang_fields.py. The rules here are about values that depend on
each other, on the model or on the flags of the engines.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seer_sgl.admission.redos import redos_risk
from seer_sgl.admission.sampling import unservable
from seer_sgl.link.contract import ORIGIN
from seer_sgl.types import EngineInfo, Sampling

from .errors import BadRequest
from .sglang_fields import (
    HEALTH_CHECK,
    INTERNAL,
    PER_PROMPT,
    PER_PROMPT_OF_BATCH,
    GenerateFields,
    SamplingFields,
    complaint,
)

Complaints = Iterator[tuple[str, str]]  # field or parameter, reason
INPUTS = ("text", "input_ids", "input_embeds")
Fields = Mapping[str, Any]


def require_harmless(fields: Fields, engines: Sequence[EngineInfo]) -> None:
    """Raises BadRequest for a request of `/generate` that would end one of the engines.

    fields: the decoded body.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name in INTERNAL:
        if name in given:
            raise BadRequest(f"{name}: SGLang sets it itself")
    wrong = complaint(given, GenerateFields)
    if wrong is not None:
        raise BadRequest(wrong)
    for name, why in _harmful(given, engines):
        raise BadRequest(f"{name}: {why}")
    parameters = given.get("sampling_params", {})
    for params in parameters if isinstance(parameters, list) else [parameters]:
        require_harmless_sampling(params, engines)


def require_harmless_sampling(params: Fields, engines: Sequence[EngineInfo]) -> None:
    """Raises BadRequest for sampling parameters that would end one of the engines."""
    wrong = complaint(dict(params), SamplingFields)
    if wrong is not None:
        raise BadRequest(wrong)
    for name, why in _harmful_sampling(params, engines):
        raise BadRequest(f"{name}: {why}")


def _harmful(given: Fields, engines: Sequence[EngineInfo]) -> Complaints:
    prompts = _prompts(given)
    for name in INPUTS:
        if name in given and prompts.get(name) == 0:
            yield name, "a prompt without tokens" if name == "input_ids" else "no prompt"
    if len(set(prompts.values())) > 1:
        yield " and ".join(prompts), "different numbers of prompts"
    yield from _harmful_ids(given, engines[0].vocab_size)
    yield from _harmful_embeds(given)
    yield from _harmful_lists(given, next(iter(prompts.values()), None))
    for rid in _list(given.get("rid")):
        if str(rid).startswith(HEALTH_CHECK):
            yield "rid", f"names that begin with {HEALTH_CHECK} are SGLang's own"
    if given.get("return_logprob"):
        yield from _harmful_logprobs(given, engines[0].vocab_size)


def _prompts(given: Fields) -> dict[str, int | None]:
    """Returns the number of prompts of each input; None for one that is not in a list."""
    counts: dict[str, int | None] = {}
    for name, depth in zip(INPUTS, (0, 1, 2), strict=True):
        value = given.get(name)
        if value is None or (name == "input_ids" and _in_session(given)):
            continue
        first = value
        for _ in range(depth):
            first = first[0] if isinstance(first, list) and first else None
        batch = isinstance(first, list) or (depth > 0 and not value)
        counts[name] = len(value) if batch else None
    return counts


def _in_session(given: Fields) -> bool:
    """Returns whether the prompt continues a session of SGLang, which may have all of its ids."""
    only_ids = not given.get("input_ids") and "text" not in given
    return only_ids and bool(given.get("session_params", {}).get("id"))


def _harmful_ids(given: Fields, vocab_size: int | None) -> Complaints:
    ids = given.get("input_ids", [])
    nested = {isinstance(each, list) for each in ids}
    if len(nested) > 1:
        yield "input_ids", "token ids and lists of token ids"
        return
    if not all(each for each in ids if isinstance(each, list)):
        yield "input_ids", "a prompt without tokens"
    for each in ids if True in nested else [ids]:
        highest = max(each, default=0)
        if vocab_size is not None and highest >= vocab_size:
            yield "input_ids", f"token id {highest} is outside the vocabulary"


def _harmful_embeds(given: Fields) -> Complaints:
    embeds = given.get("input_embeds")
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
            yield "input_embeds", "must be lists of embeddings of one size"
            return


def _harmful_lists(given: Fields, prompts: int | None) -> Complaints:
    """`prompts`: their number in a batch; None: a single prompt."""
    for name in (*PER_PROMPT, *PER_PROMPT_OF_BATCH, "token_ids_logprob"):
        value = given.get(name)
        if not isinstance(value, list):
            continue
        if name == "token_ids_logprob":
            if not (value and isinstance(value[0], list)):
                continue
            if not all(isinstance(each, list) for each in value):
                yield name, "token ids and lists of token ids"
        if prompts is not None and len(value) != prompts:
            yield name, f"{len(value)} values for {prompts} prompts"
        elif prompts is None and name not in PER_PROMPT_OF_BATCH:
            yield name, "must be no list for a single prompt"


def _harmful_logprobs(given: Fields, vocab_size: int | None) -> Complaints:
    if any(each < -1 for each in _list(given.get("logprob_start_len", -1))):
        yield "logprob_start_len", "must be at least -1"
    most = vocab_size
    if most is not None and any(each > most for each in _list(given.get("top_logprobs_num", 0))):
        yield "top_logprobs_num", f"the vocabulary has {most} tokens"


def _harmful_sampling(params: Fields, engines: Sequence[EngineInfo]) -> Complaints:
    vocab_size, min_p = engines[0].vocab_size, params.get("min_p") or 0
    if 0 < min_p <= 1:
        yield from unservable(Sampling(min_p=min_p), engines, tokenizer=True)
    for pattern in _list(params.get("stop_regex")):
        if isinstance(pattern, str) and (why := redos_risk(pattern)):
            yield "stop_regex", why
    for token in params.get("stop_token_ids") or ():
        # SGLang masks the stops of a whole batch if one of its requests has min_new_tokens.
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            yield "stop_token_ids", f"token id {token} is outside the vocabulary"
    if ORIGIN in (params.get("custom_params") or {}):
        yield "custom_params", f"the key {ORIGIN!r} is reserved for seer-sgl"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
