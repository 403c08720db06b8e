"""What OpenRLHF's executors read of a vLLM request output, made of our samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
# Turns ids into text; the second argument leaves special tokens out.
Decode = Callable[[list[int], bool], str]
# Parameters of vLLM that an agent may set and that have no counterpart here.
UNSUPPORTED = (
    "allowed_token_ids",
    "bad_words",
    "extra_args",
    "logit_bias",
    "logits_processors",
    "prompt_logprobs",
    "structured_outputs",
)
# Parameters with which vLLM returns more: several responses, and the most likely other tokens. Here
# there are one response and the tokens that were sampled.
MORE_THAN_ONE = ("n", "logprobs")


@dataclass(frozen=True)
class Logprob:
    """The log probability of a token."""

    logprob: float


@dataclass(frozen=True)
class Completion:
    """One response. `logprobs`: per token {token: Logprob}; None if they were not wanted."""

    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[dict[int, Logprob]] | None


@dataclass(frozen=True)
class Output:
    """The result of one `generate` of an executor."""

    outputs: list[Completion]


def output(sample: Json, wanted: Any, decode: Decode) -> Output:
    """Returns a finished sample as executors read it. `wanted`: vLLM's SamplingParams."""
    ids, logprobs = sample["response_ids"], None
    if wanted.logprobs is not None:
        values = sample["rollout_log_probs"]
        logprobs = [{token: Logprob(value)} for token, value in zip(ids, values, strict=True)]
    return Output(
        [Completion(ids, _text(sample, wanted, decode), sample["finish_reason"], logprobs)]
    )


def parameters(wanted: Any) -> Json:
    """Returns SGLang's sampling parameters for vLLM's SamplingParams, all of them explicit.

    The model's own generation config must not choose any. Agents may set more than OpenRLHF does.
    Raises ValueError for a parameter without a counterpart.
    """
    for name in UNSUPPORTED:
        if getattr(wanted, name, None):
            raise ValueError(f"sampling parameter {name}: is not supported")
    for name in MORE_THAN_ONE:
        value = getattr(wanted, name, None)
        if value not in (None, 0, 1):
            raise ValueError(f"sampling parameter {name}: {value} is not supported, only 1 is")
    stop = getattr(wanted, "stop", None) or []
    return {
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "top_k": wanted.top_k or -1,  # 0 is vLLM's "all tokens"
        "min_p": getattr(wanted, "min_p", 0.0),
        "max_new_tokens": wanted.max_tokens,
        "min_new_tokens": wanted.min_tokens,
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "stop_token_ids": list(getattr(wanted, "stop_token_ids", None) or []),
        "ignore_eos": getattr(wanted, "ignore_eos", False),
        "skip_special_tokens": wanted.skip_special_tokens,
        "frequency_penalty": getattr(wanted, "frequency_penalty", 0.0),
        "presence_penalty": getattr(wanted, "presence_penalty", 0.0),
        "repetition_penalty": getattr(wanted, "repetition_penalty", 1.0),
    }


def _text(sample: Json, wanted: Any, decode: Decode) -> str:
    """Returns the text of a response, without the stop token or string that ended it.

    vLLM leaves them out of the text and keeps them in the tokens, unless the parameters ask for
    them (vllm/v1/engine/detokenizer.py).
    """
    ids, matched = sample["response_ids"], sample["matched"]
    if matched is None or getattr(wanted, "include_stop_str_in_output", False):
        return decode(ids, wanted.skip_special_tokens)
    if isinstance(matched, str):
        text = decode(ids, wanted.skip_special_tokens)
        return text[: text.rfind(matched)] if matched in text else text
    return decode(ids[:-1], wanted.skip_special_tokens)
