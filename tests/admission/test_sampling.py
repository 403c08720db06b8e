"""Which sampling parameters are refused, and which keep a request undivided."""

from typing import Any

import msgspec
import pytest

from seer_sgl.admission.sampling import (
    LONGEST_STOP,
    MOST_STOPS,
    MOST_VALUES,
    divisible,
    invalid,
    too_large,
    unservable,
)
from seer_sgl.types import Sampling
from tests.helpers import make_group
from tests.support.infos import info

BARE = msgspec.structs.replace(info("e0"), has_tokenizer=False, vocab_size=100)
WITH_PLUGIN = msgspec.structs.replace(BARE, has_tokenizer=True, plugin="1")


def test_a_request_is_divisible_by_its_own_parameters_or_its_groups() -> None:
    first, own = make_group(n=2, sampling=Sampling(regex="a")).requests
    own.own_sampling = Sampling()
    assert not divisible(first)
    assert divisible(own)


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"stop": ["a"] * MOST_STOPS}, {"stop": ["a"] * (MOST_STOPS + 1)}),
        ({"stop": "a" * LONGEST_STOP}, {"stop": "a" * (LONGEST_STOP + 1)}),
        ({"stop_token_ids": [1] * MOST_VALUES}, {"stop_token_ids": [1] * (MOST_VALUES + 1)}),
    ],
)
def test_a_client_has_so_much_sent_with_every_chunk(
    most: dict[str, Any], more: dict[str, Any]
) -> None:
    assert not list(too_large(Sampling(**most)))
    assert [reason.key for reason in too_large(Sampling(**more))] == [*more]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("temperature", 1e21, "must be at most 1e+20"),
        ("repetition_penalty", 1e-21, "must be at least 1e-20"),
        ("logit_bias", {"5": -1e21}, "must be at most 1e+20 either way"),
        ("logit_bias", {"-5": 1.0}, "'-5' is not a token id"),
        ("stop", ["a", ""], "an empty stop string"),
    ],
)
def test_a_value_that_no_engine_may_have_is_named(key: str, value: Any, why: str) -> None:
    assert list(invalid(Sampling(**{key: value}))) == [(key, why)]


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("min_p", 0.1, "e0 runs with deterministic inference, where stock SGLang fails"),
        ("stop_token_ids", [99, 100], "a token id outside the vocabulary"),
        ("stop", ["a"], "e0 runs with --skip-tokenizer-init"),
        ("min_new_tokens", 1, "e0 runs with --skip-tokenizer-init"),
    ],
)
def test_a_parameter_that_an_engine_lacks_is_named(key: str, value: Any, refused: str) -> None:
    sampling = Sampling(**{key: value})
    (reason,) = unservable(sampling, [BARE], tokenizer=True)
    assert reason.key == key
    assert refused in reason.why
    expected = [key] if key == "stop_token_ids" else []
    found = unservable(sampling, [WITH_PLUGIN], tokenizer=True)
    assert [reason.key for reason in found] == expected
