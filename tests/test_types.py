"""A request grows in one place, and ids, logprobs and versions always have equal lengths."""

import pytest

from seer_sgl.types import (
    ChunkReply,
    Request,
    RequestState,
    WeightSpan,
    logprob_array,
    token_array,
)
from tests.helpers import made_sample, make_group, make_reply


def test_append_joins_neighbouring_spans_of_one_weight_version() -> None:
    request = make_group().requests[0]
    for version, tokens in (("1", 3), ("1", 2), ("2", 4)):
        request.append(make_reply(tokens, version=version))
    assert request.weight_spans == [WeightSpan("1", 5), WeightSpan("2", 4)]
    assert request.generated == len(request.logprobs) == 9
    assert request.remaining == 91
    assert request.total_len == 19


@pytest.mark.parametrize(
    ("ids", "logprobs", "spanned"), [(3, 2, 3), (3, 3, 2), (2, 3, 3), (0, 0, 1)]
)
def test_append_refuses_lengths_that_disagree(ids: int, logprobs: int, spanned: int) -> None:
    request = make_group().requests[0]
    reply = ChunkReply(
        ids=token_array(range(ids)),
        logprobs=logprob_array([0.0] * logprobs),
        weight_spans=[WeightSpan("1", spanned)],
        finish="length",
    )
    with pytest.raises(ValueError, match=r"chunk of g\.0"):
        request.append(reply)
    assert request.generated == 0


def test_a_request_finishes_once() -> None:
    request = make_group().requests[0]
    request.finish("stop", 7, 1.0)
    assert request.state is RequestState.FINISHED
    with pytest.raises(ValueError, match="finished twice"):
        request.finish("length", None, 2.0)


def test_given_tokens_and_those_without_a_verification_are_not_in_the_accept_length() -> None:
    request = make_group().requests[0]
    request.prefill(token_array(range(7)), "v1")
    plain, verified = make_reply(20), make_reply(10)
    verified.verify_steps = 4
    for reply in (plain, verified):
        request.append(reply)
    assert request.generated == 37
    assert made_sample(request).accept_length == 2.5


def test_a_group_of_many_requests_looks_at_no_finished_one_again() -> None:
    looks = 0

    class Looked:
        def __init__(self, request: Request) -> None:
            self._request = request

        @property
        def state(self) -> RequestState:
            nonlocal looks
            looks += 1
            return self._request.state

    group = make_group(n=100)
    requests, seen = group.requests, [Looked(request) for request in group.requests]
    group.requests = seen  # type: ignore[assignment]
    for request in requests:
        assert not group.complete
        request.finish("stop", None, 1.0)
    assert group.complete
    assert looks < 3 * len(requests)
    group.growing = True
    assert group.finished
    assert not group.complete
