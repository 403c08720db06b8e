"""Token arrays without contents, for replies of which only the length matters.

The ids and logprobs of 10^4 responses of 4x10^4 tokens would take 3.2 GB. `Request.append` needs
only an array's length and `extend`.
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
        """Adds the length of another array."""
        self._count += len(more)


def ids(count: int = 0) -> "array[int]":
    """Returns `count` token ids without values."""
    return cast("array[int]", TokenCount(count))


def logprobs(count: int = 0) -> "array[float]":
    """Returns `count` logprobs without values."""
    return cast("array[float]", TokenCount(count))
