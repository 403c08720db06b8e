"""What executors read of a response, and what their sampling parameters become."""

from typing import Any

import pytest
from sampling import params
from seer_openrlhf.outputs import output, parameters

EOS = 0
TEXTS = {1: "one", 2: " two", 3: " END", 4: " more", EOS: "<eos>"}


def decode(ids: list[int], skip_special_tokens: bool) -> str:
    return "".join(TEXTS[token] for token in ids if token or not skip_special_tokens)


def text(ids: list[int], matched: int | str | None, **changes: Any) -> str:
    sample = {
        "response_ids": ids,
        "rollout_log_probs": [-0.5] * len(ids),
        "finish_reason": "length" if matched is None else "stop",
        "matched": matched,
    }
    (completion,) = output(sample, params(**changes), decode).outputs
    assert completion.token_ids == ids  # the trainer's tokens are all there
    return completion.text


def test_the_text_ends_before_what_ended_the_response() -> None:
    assert text([1, 2, EOS], EOS) == "one two"
    assert text([1, 2, 3], "END") == "one two "
    assert text([1, 2, 3, 4], None) == "one two END more"


def test_the_text_has_the_end_if_the_agent_asks_for_it() -> None:
    assert text([1, 2, EOS], EOS, include_stop_str_in_output=True) == "one two<eos>"
    assert text([1, 3], "END", include_stop_str_in_output=True) == "one END"


def test_an_agents_own_parameters_reach_the_engine() -> None:
    sent = parameters(params(stop="\n", stop_token_ids=[7], min_p=0.1, repetition_penalty=1.1))
    assert (sent["stop"], sent["stop_token_ids"]) == (["\n"], [7])
    assert (sent["min_p"], sent["repetition_penalty"]) == (0.1, 1.1)
    assert parameters(params(top_k=0))["top_k"] == -1  # vLLM's "all tokens", and SGLang's


def test_a_parameter_without_a_counterpart_is_an_error() -> None:
    with pytest.raises(ValueError, match="sampling parameter logit_bias: is not supported"):
        parameters(params(logit_bias={5: -1.0}))


@pytest.mark.parametrize(("name", "value"), [("n", 4), ("logprobs", 5), ("logprobs", -1)])
def test_more_than_one_response_or_token_is_an_error(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^sampling parameter {name}: {value} is not supported"):
        parameters(params(**{name: value}))


@pytest.mark.parametrize("logprobs", [None, 0, 1])
def test_the_log_probabilities_of_sampled_tokens_are_no_error(logprobs: int | None) -> None:
    assert parameters(params(n=1, logprobs=logprobs)) == parameters(params())
