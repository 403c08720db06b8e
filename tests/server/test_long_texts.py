"""A text with very many characters costs bounded memory before it is refused."""

import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from seer_sgl.rollout.long_texts import PIECE
from seer_sgl.server.errors import BadRequest
from seer_sgl.server.prompt_texts import PromptTexts
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
    """Also in a body that is passed through."""
    reader = Reader(2)
    with pytest.raises(BadRequest, match="text: more than 65536 tokens; the longest prompt has"):
        PromptTexts(reader, LONGEST).ids("x" * 200 * LONGEST)
    with pytest.raises(BadRequest, match="prompt: more than 65536 tokens"):
        PromptTexts(reader, LONGEST).lengths("prompt", ["x" * 200 * LONGEST])
    assert reader.lengths == [PIECE, PIECE]


@pytest.mark.parametrize("length", [8 * LONGEST, PIECE, PIECE + 1, 200 * LONGEST])
def test_a_text_that_may_fit_is_read_whole(length: int) -> None:
    reader = Reader(200)
    text = "x" * length
    assert PromptTexts(reader, LONGEST).ids(text) == Reader(200)(text)
    assert max(reader.lengths) == length


def test_a_text_without_any_token_is_not_read_whole() -> None:
    lengths: list[int] = []

    def encode(text: str) -> "array[int]":
        lengths.append(len(text))
        return token_array([])

    with pytest.raises(BadRequest, match="text: empty prompt"):
        PromptTexts(encode, LONGEST).lengths("text", ["x" * 200 * LONGEST])
    assert sum(lengths) == 200 * LONGEST
    assert max(lengths) == PIECE


def test_one_very_long_text_is_read_at_a_time_and_others_meanwhile() -> None:
    begun, proceed = threading.Event(), threading.Event()
    reading: list[int] = []
    most: list[int] = []

    def encode(text: str) -> "array[int]":
        if len(text) > 10:
            reading.append(1)
            most.append(len(reading))
            begun.set()
            assert proceed.wait(60)
            reading.pop()
        return token_array([5])

    with ThreadPoolExecutor(4) as threads:
        texts = PromptTexts(encode, LONGEST)
        long = [threads.submit(texts.ids, "x" * 200 * LONGEST) for _ in range(3)]
        assert begun.wait(60)
        assert texts.ids("short") == token_array([5])
        proceed.set()
        assert [each.result() for each in long] == [token_array([5])] * 3
    assert max(most) == 1
