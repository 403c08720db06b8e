"""Estimates how often a draft token is accepted: the index's probability, corrected by results.

The correction depends on the position in the draft and on the length of the match. The index
overestimates short matches, and the first token is more reliable than the eighth.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel, part
from .drafter import Drafts
from .tree import Accepted

CLASSES = 6  # of positions, and of match lengths: 1, 2, 3-4, 5-8, 9-16, 17 and more
PRIOR = 20.0  # expected draft tokens, and accepted ones, that a class starts with
LEAST = 1.0  # and that it keeps: else one observation would decide on a class long not seen
HALF_LIFE = 2000.0  # expected draft tokens after which an observation counts half


class Tally(NamedTuple):
    """Draft tokens whose parent was accepted, by position 1, 2, ...; index 0 is unused."""

    tried: NDArray[np.int64]
    accepted: NDArray[np.int64]


class Acceptance:
    """Estimates acceptance and learns from verifications. `most`: maximum of drafts per request."""

    def __init__(self, most: int) -> None:
        self.tally = Tally(np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64))
        self._uncounted = Tally(*map(np.zeros_like, self.tally))
        self._expected = np.full((CLASSES, CLASSES), PRIOR)
        self._accepted = np.full((CLASSES, CLASSES), PRIOR)

    def expected(self, drafts: Drafts) -> NDArray[np.float64]:
        """Returns the probability that each draft token is accepted, [n, W]; 0 without a token."""
        gains = np.zeros(drafts.tokens.shape)
        ratios = self._accepted / self._expected
        _expect(drafts.parents, drafts.probs, drafts.counts, drafts.matches, ratios, gains)
        return gains

    def observe(
        self, drafts: Drafts, accepted: Accepted, width: int, *, verified: bool = True
    ) -> None:
        """Learns from a verification of `width` nodes per request. verified: whether there was one;
        else it is known from what the requests wrote (tree.py: `followed`), and not counted."""
        before = self._expected.sum()
        tally = self.tally if verified else self._uncounted
        _learn(
            drafts.parents,
            drafts.probs,
            drafts.counts,
            drafts.matches,
            accepted.nodes,
            accepted.counts,
            width,
            self._expected,
            self._accepted,
            tally.tried,
            tally.accepted,
        )
        faded = 1 - 0.5 ** ((self._expected.sum() - before) / HALF_LIFE)
        self._expected += faded * (LEAST - self._expected)
        self._accepted += faded * (LEAST - self._accepted)


@part
def _class(value: int) -> int:
    """Returns 0 for 1, 1 for 2, 2 for 3-4, 3 for 5-8, 4 for 9-16, 5 beyond."""
    size = 1
    for number in range(CLASSES - 1):
        if value <= size:
            return number
        size *= 2
    return CLASSES - 1


@kernel("void(int32[:,::1],float32[:,::1],int32[::1],int32[::1],float64[:,::1],float64[:,::1])")
def _expect(
    parents: NDArray[np.int32],
    probs: NDArray[np.float32],
    counts: NDArray[np.int32],
    matches: NDArray[np.int32],
    ratios: NDArray[np.float64],
    gains: NDArray[np.float64],
) -> None:
    depths = np.zeros(parents.shape[1], np.int64)
    for i in range(parents.shape[0]):
        match = _class(matches[i])
        for k in range(counts[i]):
            parent = parents[i, k]
            before, above, depths[k] = 1.0, 1.0, 1
            if parent >= 0:
                before, above = gains[i, parent], probs[i, parent]
                depths[k] = depths[parent] + 1
            share = probs[i, k] / above * ratios[_class(depths[k]), match]
            gains[i, k] = before * min(1.0, share)


@kernel(
    "void(int32[:,::1],float32[:,::1],int32[::1],int32[::1],int32[:,::1],int32[::1],"
    "int64,float64[:,::1],float64[:,::1],int64[::1],int64[::1])"
)
def _learn(
    parents: NDArray[np.int32],
    probs: NDArray[np.float32],
    counts: NDArray[np.int32],
    matches: NDArray[np.int32],
    nodes: NDArray[np.int32],
    node_counts: NDArray[np.int32],
    width: int,
    expected: NDArray[np.float64],
    accepted: NDArray[np.float64],
    tried_at: NDArray[np.int64],
    accepted_at: NDArray[np.int64],
) -> None:
    depths = np.zeros(parents.shape[1], np.int64)
    for i in range(parents.shape[0]):
        match = _class(matches[i])
        for k in range(min(counts[i], width - 1)):
            parent = parents[i, k]
            depths[k] = 1 if parent < 0 else depths[parent] + 1
            depth = depths[k]
            # The accepted path has one node per depth; its node 0 is the root.
            if depth > node_counts[i] or nodes[i, depth - 1] != parent + 1:
                continue
            above = 1.0 if parent < 0 else probs[i, parent]
            hit = depth < node_counts[i] and nodes[i, depth] == k + 1
            expected[_class(depth), match] += probs[i, k] / above
            accepted[_class(depth), match] += hit
            tried_at[depth] += 1
            accepted_at[depth] += hit
