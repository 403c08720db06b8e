"""Token arrays without values, for replies of which only the length matters.

The ids and logprobs of 10^4 responses of 4x10^4 tokens would take 3.2 GB. `Request.append` needs
only an array's length and `extend`. An array knows which tokens of which response it stands for, so
a token that is lost, repeated or another response's is an error.
"""

from array import array
from typing import cast


class TokenRun:
    """An append-only array of `count` consecutive tokens of a response, from `first` on.

    `source`: what determines the tokens: the request and the weights.
    """

    __slots__ = ("_count", "_first", "_source")

    def __init__(self, source: str, first: int, count: int) -> None:
        self._source = source
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def extend(self, more: "TokenRun") -> None:
        """Adds another array. Raises ValueError if its tokens do not follow these."""
        end = self._first + self._count
        if more._count and (more._first != end or more._source != self._source):
            raise ValueError(
                f"token {more._first} of {more._source} does not follow the first {end} tokens of "
                f"{self._source}"
            )
        self._count += more._count


def ids(source: str, first: int = 0, count: int = 0) -> "array[int]":
    """Returns `count` token ids of a response without values, from position `first` on."""
    return cast("array[int]", TokenRun(source, first, count))


def logprobs(source: str, first: int = 0, count: int = 0) -> "array[float]":
    """Returns `count` logprobs of a response without values, from position `first` on."""
    return cast("array[float]", TokenRun(source, first, count))
