"""Tokens of which only the number matters.

10^4 responses of 4x10^4 tokens would be 3.2 GB of ids and logprobs. A simulated reply carries this
instead; `Request.append` needs no more of an array than its length and `extend`.
"""

from array import array
from typing import cast


class TokenCount:
    """An append-only array without contents."""

    __slots__ = ("_count",)

    def __init__(self, count: int = 0) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def extend(self, more: "TokenCount") -> None:
        """As long as both together."""
        self._count += len(more)


def ids(count: int = 0) -> "array[int]":
    """`count` token ids that nobody looks at."""
    return cast("array[int]", TokenCount(count))


def logprobs(count: int = 0) -> "array[float]":
    """`count` logprobs that nobody looks at."""
    return cast("array[float]", TokenCount(count))
