"""What OpenRLHF's executors read of a vLLM request output, made of our samples."""

from dataclasses import dataclass
from typing import Any


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


def output(ids: list[int], logprobs: list[float] | None, text: str, finish: str) -> Output:
    """Returns a response as executors read it."""
    dicts = None
    if logprobs is not None:
        dicts = [{token: Logprob(value)} for token, value in zip(ids, logprobs, strict=True)]
    return Output([Completion(ids, text, finish, dicts)])


def parameters(wanted: Any) -> dict[str, Any]:
    """Returns SGLang's sampling parameters for vLLM's `SamplingParams`, all of them explicit.

    The model's own generation config must not choose any.
    """
    return {
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "top_k": wanted.top_k,
        "min_p": 0.0,
        "max_new_tokens": wanted.max_tokens,
        "min_new_tokens": wanted.min_tokens,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "skip_special_tokens": wanted.skip_special_tokens,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
