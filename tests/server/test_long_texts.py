"""A text with very many characters costs bounded memory before it is refused."""

import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from seer_sgl.rollout.long_texts import PIECE
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.generate_body import encoded
from seer_sgl.server.passthrough.body import text_lengths
from seer_sgl.types import token_array

LONGEST = 1000  # tokens


class Reader:
    """A tokenizer with a token for every `size` characters. lengths: of the texts that it read."""

    def __init__(self, size: int) -> None:
        self.lengths: list[int] = []
        self._size = size

    def __call__(self, text: str) -> "array[int]":
        self.lengths.append(len(text))
        return token_array([5] * -(-len(text) // self._size))


def test_far_too_many_tokens_are_found_in_the_first_piece() -> None:
    """Also in a body that is sent on as it is."""
    reader = Reader(2)
    with pytest.raises(BadRequest, match="text: more than 65536 tokens; the longest prompt has"):
        encoded("x" * (20 * PIECE), reader, LONGEST)
    with pytest.raises(BadRequest, match="prompt: more than 65536 tokens"):
        text_lengths("prompt", ["x" * 200 * LONGEST], reader, LONGEST)
    assert reader.lengths == [PIECE, PIECE]


@pytest.mark.parametrize("length", [8 * LONGEST, PIECE, PIECE + 1, 200 * LONGEST])
def test_a_text_that_may_fit_is_read_whole(length: int) -> None:
    reader = Reader(200)
    text = "x" * length
    assert encoded(text, reader, LONGEST) == reader(text)
    assert max(reader.lengths) == length


def test_a_text_without_any_token_is_not_read_whole() -> None:
    lengths: list[int] = []

    def encode(text: str) -> "array[int]":
        lengths.append(len(text))
        return token_array([])

    with pytest.raises(BadRequest, match="text: empty prompt"):
        text_lengths("text", "x" * 200 * LONGEST, encode, LONGEST)
    assert sum(lengths) == 200 * LONGEST
    assert max(lengths) == PIECE


def test_one_very_long_text_is_read_at_a_time_and_others_meanwhile() -> None:
    begun, go_on = threading.Event(), threading.Event()
    reading: list[int] = []
    most: list[int] = []

    def encode(text: str) -> "array[int]":
        if len(text) > 10:
            reading.append(1)
            most.append(len(reading))
            begun.set()
            assert go_on.wait(5)
            reading.pop()
        return token_array([5])

    with ThreadPoolExecutor(4) as threads:
        long = [threads.submit(encoded, "x" * (2 * PIECE), encode, LONGEST) for _ in range(3)]
        assert begun.wait(5)
        assert len(encoded("short", encode, LONGEST)) == 1
        go_on.set()
        assert [len(each.result()) for each in long] == [1, 1, 1]
    assert max(most) == 1
