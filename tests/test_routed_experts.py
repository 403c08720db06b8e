"""Rows of routed experts: their form, joining and cutting."""

import msgspec
import pytest

from seer_sgl.routed_experts import ExpertShape, RoutedExperts
from tests.helpers import make_group, make_reply
from tests.support.experts import SHAPE, rows_of


def rows(first: int, count: int, shape: ExpertShape = SHAPE) -> RoutedExperts:
    return RoutedExperts.of(rows_of(5, first, count, shape), shape)


@pytest.mark.parametrize(
    ("experts", "dtype", "size"), [(1, "uint8", 6), (256, "uint8", 6), (257, "int16", 12)]
)
def test_a_value_has_as_few_bytes_as_it_needs(experts: int, dtype: str, size: int) -> None:
    shape = ExpertShape(3, 2, experts)
    assert (shape.dtype, shape.row_bytes) == (dtype, size)


def test_parts_join_to_the_whole_and_in_json_to_base64_with_their_form() -> None:
    joined = rows(0, 3)
    joined.append(rows(3, 4))
    assert joined == rows(0, 7)
    assert joined.first(5) == rows(0, 5)
    assert joined.first(0).rows == 0
    assert joined.array()[6].tolist() == rows(6, 1).array()[0].tolist()
    decoded = msgspec.json.decode(msgspec.json.encode(joined), type=RoutedExperts)
    assert decoded == joined
    assert decoded.shape == (7, 3, 2)


@pytest.mark.parametrize("other", [(2, 2, 8), (3, 3, 8), (3, 2, 300)])
def test_rows_of_another_form_are_not_appended(other: tuple[int, int, int]) -> None:
    whole = rows(0, 3)
    with pytest.raises(ValueError, match=r"form .* after \(3, 2\) uint8"):
        whole.append(rows(3, 1, ExpertShape(*other)))
    assert whole == rows(0, 3)


def test_a_request_takes_a_row_per_token_but_the_last() -> None:
    request = make_group(n=1, prompt_len=10).requests[0]
    for first, last, count in ((0, 12, 3), (12, 13, 1), (13, 18, 5)):
        reply = make_reply(count)
        reply.routed_experts = rows(first, last - first)
        request.append(reply)
        assert request.routed == request.total_len - 1 == last
    assert request.routed_experts == rows(0, 18)
    assert reply.routed_experts == rows(13, 5), "the request has a copy"


@pytest.mark.parametrize("count", [11, 13])
def test_a_request_refuses_rows_of_other_tokens(count: int) -> None:
    request = make_group(n=1, prompt_len=10).requests[0]
    reply = make_reply(3)
    reply.routed_experts = rows(0, count)
    with pytest.raises(ValueError, match=f"{count} rows of routed experts after 0, for 12 tokens"):
        request.append(reply)
    assert (request.generated, request.routed) == (0, 0)
