"""Counts the tokens of very long texts in pieces.

A tokenizer needs a quarter of a kilobyte per character of a text that it reads at once.
"""

from array import array
from collections.abc import Callable

PIECE = 1 << 17  # characters
USUAL_CHARACTERS_PER_TOKEN = 8  # half as many in English


def is_long(text: str, most: int) -> bool:
    """Returns whether a text has far more characters than `most` tokens usually have."""
    return len(text) > max(PIECE, USUAL_CHARACTERS_PER_TOKEN * most)


def count_to(text: str, encode: "Callable[[str], array[int]]", most: int) -> int:
    """Returns the tokens of a text's pieces, which stop once there are more than `most`."""
    count = 0
    for at in range(0, len(text), PIECE):
        count += len(encode(text[at : at + PIECE]))
        if count > most:
            break
    return count
