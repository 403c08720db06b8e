"""Which sampling parameters are refused, and which keep a request undivided. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seer_sgl.bounds import HIGHEST_REAL, LARGEST_ID
from seer_sgl.engine_types import EngineInfo
from seer_sgl.sampling import LIMIT, NEUTRAL, ORIGIN, Sampling
from seer_sgl.types import Request

from .grammars import grammar_risk
from .redos import redos_risk

TOKEN_ID = re.compile(r"[0-9]{1,10}")
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
# Parameters with state inside one SGLang request: the state is lost between two chunks.
STATEFUL = (
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    *GRAMMARS,
    "stop_regex",
)
MOST_STOPS = 32  # SGLang's MAX_STOP_COUNT and MAX_STOP_REGEX_COUNT
LONGEST_STOP = 128  # characters
MOST_VALUES = 4096
# SGLang divides logits by it, and then by the temperature; below, a float32 overflows.
LEAST_REPETITION = 1 / HIGHEST_REAL


class Reason(NamedTuple):
    """Why a request is refused, or not divided. `key`: the field or parameter; empty: several."""

    key: str
    why: str


def divisible(request: Request) -> bool:
    """Returns whether another chunk can continue a request."""
    if request.passthrough is not None or request.group.undivided:
        return False
    return not any(undivided(request.sampling))


def undivided(sampling: Sampling) -> Iterator[Reason]:
    """Yields each set parameter whose state cannot cross a chunk boundary."""
    for name in STATEFUL:
        if getattr(sampling, name) != getattr(NEUTRAL, name):
            yield Reason(name, "cannot cross a chunk boundary")


def too_large(sampling: Sampling) -> Iterator[Reason]:
    """Yields each parameter that is too large for a client to have it sent with every chunk.

    A stop string that begins in one chunk and ends in the next is also searched by the driver,
    token by token.
    """
    stops = sampling.stops()
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        yield Reason("stop", f"more than {MOST_STOPS}, or longer than {LONGEST_STOP} characters")
    for name in ("stop_token_ids", "logit_bias", "custom_params"):
        if len(getattr(sampling, name)) > MOST_VALUES:
            yield Reason(name, f"more than {MOST_VALUES} values")


def invalid(sampling: Sampling) -> Iterator[Reason]:
    """Yields each value that is invalid, or contradicts another, whatever the engines."""
    yield from _overflowing(sampling)
    if sampling.top_k == 0:
        yield Reason("top_k", "must be -1 (off) or at least 1")
    if sampling.min_new_tokens > sampling.max_new_tokens:
        yield Reason("min_new_tokens", f"exceeds {LIMIT}")
    for token, bias in sampling.logit_bias.items():
        if abs(bias) > HIGHEST_REAL:
            yield Reason("logit_bias", f"must be at most {HIGHEST_REAL:g} either way")
        if not TOKEN_ID.fullmatch(token) or int(token) > LARGEST_ID:
            yield Reason("logit_bias", f"{token!r} is not a token id")
    regexes = [sampling.stop_regex] if isinstance(sampling.stop_regex, str) else sampling.stop_regex
    if len(regexes) > MOST_STOPS:
        yield Reason("stop_regex", f"more than {MOST_STOPS} patterns")
    for pattern in regexes[:MOST_STOPS]:
        why = redos_risk(pattern)
        if why is not None:
            yield Reason("stop_regex", why)
    yield from uncompilable(sampling.json_schema, sampling.structural_tag)
    if any(not stop for stop in sampling.stops()):
        yield Reason("stop", "an empty stop string")
    if sum(getattr(sampling, name) is not None for name in GRAMMARS) > 1:
        why = f"only one of {', '.join(GRAMMARS[:-1])} and {GRAMMARS[-1]} can be set"
        yield Reason("", why)
    if ORIGIN in sampling.custom_params:
        yield Reason("custom_params", f"the key {ORIGIN!r} is reserved for seer-sgl")


def _overflowing(sampling: Sampling) -> Iterator[Reason]:
    """Yields each value beyond which SGLang's arithmetic of logits is not finite."""
    if sampling.temperature > HIGHEST_REAL:
        yield Reason("temperature", f"must be at most {HIGHEST_REAL:g}")
    if sampling.repetition_penalty < LEAST_REPETITION:
        yield Reason("repetition_penalty", f"must be at least {LEAST_REPETITION:g}")


def uncompilable(json_schema: str | None, structural_tag: str | None) -> Iterator[Reason]:
    """Yields each grammar that crashes the engine that compiles it."""
    for name, text in (("json_schema", json_schema), ("structural_tag", structural_tag)):
        why = None if text is None else grammar_risk(text)
        if why is not None:
            yield Reason(name, why)


def unservable(
    sampling: Sampling, engines: Sequence[EngineInfo], *, tokenizer: bool
) -> Iterator[Reason]:
    """Yields each parameter that the engines or this process cannot serve.

    tokenizer: whether this process has a tokenizer.
    """
    if sampling.stops() and not tokenizer:
        yield Reason("stop", "stop strings need a tokenizer: set model.path")
    for info in engines:
        engine = f"engine {info.engine_id}"
        if sampling.return_routed_experts and info.experts is None:
            yield Reason(
                "return_routed_experts",
                f"{engine} returns none: it needs a model with a mixture of experts, the seer-sgl "
                "plugin, and the flag enable-return-routed-experts",
            )
        if sampling.min_p > 0 and info.deterministic and info.plugin is None:
            yield Reason(
                "min_p",
                f"{engine} runs with deterministic inference, where stock SGLang fails; start it "
                "with `seer-sgl engine`",
            )
        if (
            info.vocab_size is not None
            and max(sampling.stop_token_ids, default=0) >= info.vocab_size
        ):
            yield Reason(
                "stop_token_ids",
                f"a token id outside the vocabulary; beside a request with min_new_tokens {engine} "
                "would fail",
            )
        for key in () if info.has_tokenizer else ("stop", "stop_regex", "min_new_tokens"):
            if getattr(sampling, key):
                yield Reason(
                    key,
                    f"{engine} runs with --skip-tokenizer-init, where SGLang refuses this "
                    "parameter",
                )
