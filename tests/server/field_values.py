"""Bodies with every field of SGLang's and OpenAI's endpoints and values of every JSON type."""

import itertools
from collections.abc import Iterator
from typing import Any

from seer_sgl.admission.sglang_fields import DROPPED, INTERNAL, GenerateFields, SamplingFields
from seer_sgl.server.passthrough.openai import RENAMED
from seer_sgl.server.passthrough.other_paths import PLACED

Json = dict[str, Any]
TEXT = "<bos> 4 6 2 , 3 7 ?"
MESSAGES = [{"role": "user", "content": "gcd 4 6 2 , 3 7 ?"}]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 300, 3e9, 1.5, -0.5, 1e308, -1e308),
    *(1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, "", "x", "5", ".*.*z", "HEALTH_CHECK_1"),
    *([], [[]], [None], [1], [-1], [1, "a"], ["a"], ["a", "b"], [True], [0.5], [[1, 2], [3]]),
    *([{}], {}, {"a": 1}, {"a": [1]}, {"a": {"b": [1]}}, {"id": "x"}, {"id": 5}, {"5": 1.5}),
    *({"5": 1e308}, {"5": None}, {"seer_sgl": {"group": 5}}, {"__req__": 1}, [{"n": 2}]),
]
# Fields that SGLang's own processes set in SamplingParams, and one that nobody has.
SET_BY_SGLANG = (
    *("stop_strs", "stop_regex_strs", "stop_str_max_len", "stop_regex_max_len"),
    *("is_normalized", "ebnf_full_assistant", "nobody_has_this"),
)
GENERATE = (*GenerateFields.__struct_fields__, *INTERNAL, *DROPPED, "nobody_has_this")
SAMPLING = (*SamplingFields.__struct_fields__, *SET_BY_SGLANG)
OPENAI = tuple(
    dict.fromkeys((*GENERATE, *SAMPLING, *RENAMED, "prompt", "logprobs", "top_logprobs"))
)


def generate(params: Json, **fields: Any) -> Json:
    prompt = {} if {"text", "input_ids", "input_embeds"} & set(fields) else {"text": TEXT}
    return prompt | {"sampling_params": {"max_new_tokens": 3} | params} | fields


def fields() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each field of `/generate`."""
    for name, value in itertools.product(GENERATE, VALUES):
        yield "/generate", generate({}, **{name: value})
        yield "/generate", generate({}, **{"text": TEXT, name: value, "return_logprob": True})
        batch = {"text": [TEXT, TEXT], name: value, "top_logprobs_num": 1}
        yield "/generate", generate({}, **batch)


def parameters() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each sampling parameter."""
    for name, value in itertools.product(SAMPLING, VALUES):
        yield "/generate", generate({name: value})
        more = {"min_new_tokens": 2, "frequency_penalty": 0.1, name: value}
        yield "/generate", generate(more, stream=True, top_logprobs_num=1)


def completions() -> Iterator[tuple[str, Json]]:
    """Yields path and body for each field of OpenAI's completions."""
    for name, value in itertools.product(OPENAI, VALUES):
        yield "/v1/completions", {"prompt": TEXT, "logprobs": 1, "max_tokens": 3, name: value}


def others() -> Iterator[tuple[str, Json]]:
    """Yields path and body for the fields of a chat that reach SGLang's scheduler, and for some of
    other endpoints."""
    chat: Json = {"messages": MESSAGES, "max_tokens": 3}
    for name, value in itertools.product((*SAMPLING, *RENAMED, "rid", "logprobs"), VALUES):
        yield "/v1/chat/completions", {**chat, "top_logprobs": 1, name: value}
    for path, name, value in itertools.product(PLACED, ("text", "input", "top_k"), VALUES):
        yield path, {**chat, "model": "any", "prompt": TEXT, "input": TEXT, name: value}
