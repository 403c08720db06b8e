"""Requests that stop the scheduler of SGLang 0.5.21, each found by trying. Pure.

SGLang refuses most wrong values itself. The ones here it accepts, and then fails with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seer_sgl.driver.checks import unservable
from seer_sgl.patterns import too_costly
from seer_sgl.sampling import GRAMMARS
from seer_sgl.types import EngineInfo, Sampling

from .errors import BadRequest

READ = (
    *("text", "input_ids", "sampling_params"),
    *("return_logprob", "top_logprobs_num", "logprob_start_len", "positional_embed_overrides"),
)
LARGEST_TOP_K = (1 << 31) - 1
WHOLE_NUMBERS = ("max_new_tokens", "beam_width")
FLAGS = ("skip_special_tokens",)


def require_harmless(known: Mapping[str, Any], engines: Sequence[EngineInfo]) -> None:
    """Raises BadRequest for a request that would end one of the engines.

    known: the values of the fields READ; a missing one is None.
    """
    vocab_size = engines[0].vocab_size
    if known["positional_embed_overrides"] is not None:
        raise BadRequest("positional_embed_overrides: JSON cannot hold what SGLang expects")
    if known["return_logprob"]:
        for name, why in _harmful_logprobs(known, vocab_size):
            raise BadRequest(f"{name}: {why}")
    if isinstance(known["input_ids"], list):
        _require_tokens(known["input_ids"], vocab_size)
    parameters = known["sampling_params"]
    for params in parameters if isinstance(parameters, list) else [parameters]:
        if isinstance(params, dict):
            for name, why in _harmful(params, engines):
                raise BadRequest(f"{name}: {why}")


def _harmful_logprobs(
    known: Mapping[str, Any], vocab_size: int | None
) -> Iterator[tuple[str, str]]:
    """Yields (field, reason)."""
    single = isinstance(known["text"], str) or not any(
        isinstance(each, list) for each in _list(known["input_ids"])
    )
    single = single and _of_one_sample(known["sampling_params"])
    top, start = known["top_logprobs_num"], known["logprob_start_len"]
    for name, value in (("top_logprobs_num", top), ("logprob_start_len", start)):
        if single and isinstance(value, list):
            yield name, "must be a number for a single prompt"
    if any(isinstance(each, int) and each < -1 for each in _list(start)):
        yield "logprob_start_len", "must be at least -1"
    most = vocab_size
    if most is not None and any(isinstance(each, int) and each > most for each in _list(top)):
        yield "top_logprobs_num", f"the vocabulary has {most} tokens"


def _of_one_sample(params: Any) -> bool:
    return not isinstance(params, dict) or params.get("n") in (None, 1)


def _require_tokens(ids: list[Any], vocab_size: int | None) -> None:
    for each in ids:
        if isinstance(each, list):
            if not each:
                raise BadRequest("input_ids: a prompt without tokens")
            _require_tokens(each, vocab_size)
        elif isinstance(each, int) and not _is_token(each, vocab_size):
            raise BadRequest(f"input_ids: token id {each} is outside the vocabulary")


def _harmful(params: Mapping[str, Any], engines: Sequence[EngineInfo]) -> Iterator[tuple[str, str]]:
    """Yields (parameter, reason)."""
    yield from _of_wrong_type(params)
    top_k, min_p = params.get("top_k"), params.get("min_p")
    if isinstance(top_k, int) and top_k > LARGEST_TOP_K:
        yield "top_k", f"must be at most {LARGEST_TOP_K}"
    if isinstance(min_p, int | float) and min_p > 0:
        yield from unservable(Sampling(min_p=min_p), engines, tokenizer=True)
    for pattern in _list(params.get("stop_regex")):
        if isinstance(pattern, str) and (why := too_costly(pattern)):
            yield "stop_regex", why
    if params.get("min_new_tokens"):
        for token in _list(params.get("stop_token_ids")):
            if isinstance(token, int) and not _is_token(token, engines[0].vocab_size):
                yield "stop_token_ids", f"token id {token} is outside the vocabulary"


def _of_wrong_type(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in WHOLE_NUMBERS:
        if isinstance(params.get(name), float):
            yield name, "must be a whole number"
    for name in GRAMMARS:
        if not isinstance(params.get(name), str | None):
            yield name, "must be a text"
    for name in FLAGS:
        if not isinstance(params.get(name), int | None):
            yield name, "must be true or false"
    bias = params.get("logit_bias")
    if bias is not None and not _is_of_numbers(bias):
        yield "logit_bias", "must be an object of numbers"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_of_numbers(bias: Any) -> bool:
    return isinstance(bias, dict) and all(isinstance(each, int | float) for each in bias.values())


def _is_token(token: int, vocab_size: int | None) -> bool:
    return token >= 0 and (vocab_size is None or token < vocab_size)
