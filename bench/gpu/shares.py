"""How many samples of two rollouts are identical, and where the others part. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec


class Response(NamedTuple):
    """The tokens of a sample, and the log probability of each."""

    tokens: Sequence[int]
    logprobs: Sequence[float]


Responses = Mapping[str, Response]  # by group and index


class Spread(msgspec.Struct, frozen=True):
    """The least, the median and the greatest of some values."""

    least: float
    median: float
    most: float


class Difference(msgspec.Struct, frozen=True):
    """What differs between the samples of two rollouts.

    `logprob_gap`: the greatest difference of a log probability per sample, before it parts.
    `parts_at`: the first token that differs, of the samples that are not identical.
    `gap_there`: the difference of the two log probabilities at that token.
    """

    samples: int
    identical: int
    logprob_gap: Spread | None
    parts_at: Spread | None
    gap_there: Spread | None


def difference(one: Responses, other: Responses) -> Difference:
    """Compares the samples that both rollouts have."""
    parts, gaps, there = [], [], []
    keys = sorted(one.keys() & other.keys())
    for key in keys:
        a, b = one[key], other[key]
        at = parting(a.tokens, b.tokens)
        both = list(zip(a.logprobs, b.logprobs, strict=False))
        gaps.append(max((abs(x - y) for x, y in both[:at]), default=0.0))
        if at is not None:
            parts.append(at)
            there += [abs(x - y) for x, y in both[at : at + 1]]
    return Difference(len(keys), len(keys) - len(parts), spread(gaps), spread(parts), spread(there))


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Returns the index of the first token that differs or that only one has; None if equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def spread(values: Sequence[float]) -> Spread | None:
    """Returns the spread of the values; None without values."""
    if not values:
        return None
    return Spread(min(values), statistics.median(values), max(values))
