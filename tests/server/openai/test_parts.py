"""Log probabilities in OpenAI's forms, and the end of a reasoning."""

from seer_sgl.server.openai.parts import chat_logprobs, completion_logprobs
from seer_sgl.server.openai.reasoning import reasoning_tokens

BYTES = {1: b"a", 2: b"\xe2\x82", 3: b"\xef\xbf\xbd"}
TRIPLES = [(-1.0, 1, "a"), (-2.0, 2, "\ufffd"), (-3.0, 3, "\ufffd"), (-4.0, 4, None)]


def test_a_part_of_a_character_is_its_bytes_in_latin_1() -> None:
    logprobs = completion_logprobs(TRIPLES, BYTES.get)
    assert logprobs["tokens"] == ["a", "\xe2\x82", "\ufffd", ""]
    assert logprobs["token_logprobs"] == [-1.0, -2.0, -3.0, -4.0]


def test_the_tokens_of_a_chat_have_their_bytes() -> None:
    content = chat_logprobs(TRIPLES, BYTES.get)["content"]
    assert [token["bytes"] for token in content] == [[97], [226, 130], [239, 191, 189], []]


def test_reasoning_ends_with_the_first_whole_mark() -> None:
    assert reasoning_tokens([5, 9, 8, 9, 8, 7, 6], [9, 8, 7]) == 6
    assert reasoning_tokens([5, 9, 8], [9, 8, 7]) == 3
    assert reasoning_tokens([], [9]) == 0
