"""Proposes drafts after a text: a chain, or a tree by best-first search (paper section 3).

The context is the longest suffix of the text that has occurred before. The text's own fresh end
has no continuation, so it cannot predict itself. If n tokens of c different kinds have followed the
context, about c / (n + c) of the probability goes to the next shorter context, and so on. This is
the back-off of PPM (Cleary & Witten 1984; method C, Moffat 1990). Without it, one occurrence out of
one would look certain.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .automaton import (
    CHILDREN,
    COUNT,
    EDGE,
    LABEL,
    LENGTH,
    LINK,
    NEXT,
    SIBLING,
    TO,
    TOKEN,
    Index,
    prefetch_after,
)
from .compiled import array_at, float64, int64, part

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

SHORT = 4.0  # tokens: a context of this length backs off with twice the weight
VOTERS = 4  # contexts that contribute to a token's probability
SCANNED = 16  # newest edges of a fork that are read, beside the likeliest
FRONTIER = 64  # open nodes; candidates beyond it are dropped
FRONTIER_BYTES = 16 * FRONTIER + 4

# The maximum length of a draft: tokens per token of its context, and a constant.
DRAFT_PER_CONTEXT = 4.0
DRAFT_ANYWAY = 8.0


class Drafted(NamedTuple):
    """The output arrays of a draft, at least as long as the budget."""

    tokens: Int32
    parents: Int32
    probs: Float32
    states: Int32  # the state that each token leads to


class Frontier(NamedTuple):
    """The candidate nodes of a tree: arrays [FRONTIER], and the number of candidates."""

    tokens: Int32
    parents: Int32
    probs: Float32
    states: Int32
    size: Int32  # [1]


@part
def frontier_at(address: int) -> Frontier:
    """Returns the frontier in FRONTIER_BYTES at an address."""
    return Frontier(
        array_at(address, (FRONTIER,), np.int32),
        array_at(address + 4 * FRONTIER, (FRONTIER,), np.int32),
        array_at(address + 8 * FRONTIER, (FRONTIER,), np.float32),
        array_at(address + 12 * FRONTIER, (FRONTIER,), np.int32),
        array_at(address + 16 * FRONTIER, (1,), np.int32),
    )


@part
def context_of(index: Index, last: int) -> int:
    """Returns the longest suffix of the text ending in `last` that has a continuation; 0: none."""
    states = index.states
    state = int64(last)
    while state > 0 and states[state, NEXT] == 0:
        state = int64(states[state, LINK])
    return state


@part
def propose(
    index: Index,
    context: int,
    budget: int,
    paths: int,
    min_probability: float,
    frontier: Frontier,
    drafted: Drafted,
) -> int:
    """Drafts at most `budget` tokens after a context. Returns the number of tokens.

    A node has at most `paths` continuations, likeliest first. A parent comes before its children.
    """
    length = float64(index.states[context, LENGTH])
    budget = min(budget, int64(length * DRAFT_PER_CONTEXT + DRAFT_ANYWAY))
    frontier.size[0] = 0
    scanned = 0 if paths == 1 else SCANNED
    _vote(index, context, True, 1.0, -1, scanned, paths, min_probability, frontier)
    count = 0
    while count < budget and frontier.size[0] > 0:
        _take(frontier, drafted, count)
        if paths == 1:
            return _follow(index, budget, min_probability, drafted)
        end = int64(drafted.states[count])
        state = context_of(index, end)
        if state > 0 and count + 1 < budget:
            prob = float64(drafted.probs[count])
            at_end = state != end
            _vote(index, state, at_end, prob, count, scanned, paths, min_probability, frontier)
        count += 1
    return count


@part
def _follow(index: Index, budget: int, min_probability: float, drafted: Drafted) -> int:
    """Drafts the rest of a chain after its first token. Returns the number of tokens."""
    states = index.states
    state, prob = int64(drafted.states[0]), float64(drafted.probs[0])
    count = 1
    while count < budget:
        end = state
        state = context_of(index, end)
        if state <= 0:
            break
        following = int64(states[state, NEXT])
        prob *= _likelihood(index, state, state != end)
        if prob < min_probability:
            break
        drafted.tokens[count] = states[state, TOKEN]
        drafted.parents[count] = count - 1
        drafted.probs[count] = prob
        drafted.states[count] = following
        count += 1
        state = following
    return count


@part
def _likelihood(index: Index, state: int, at_end: bool) -> float:
    """Returns the blended probability of the likeliest token after a context."""
    states = index.states
    token = states[state, TOKEN]
    total, left = float64(0.0), float64(1.0)
    for _ in range(VOTERS):
        if states[state, TOKEN] != token:  # counted as if the token never occurred there
            break
        escape = _escape(index, state)
        share = left / (_seen(index, state, at_end) + escape)
        total += share * states[states[state, NEXT], COUNT]
        left = share * escape
        state = int64(states[state, LINK])
        if state <= 0:
            break
    return min(float64(1.0), total)


@part
def _vote(
    index: Index,
    state: int,
    at_end: bool,
    prob: float,
    parent: int,
    scanned: int,
    paths: int,
    min_probability: float,
    frontier: Frontier,
) -> None:
    """Adds the tokens that follow a context, and its shorter contexts, to the frontier."""
    states = index.states
    first, least = int64(frontier.size[0]), min_probability / VOTERS
    left = float64(prob)
    for _ in range(VOTERS):
        shorter = int64(states[state, LINK])
        prefetch_after(index, shorter)
        escape = _escape(index, state)
        share = left / (_seen(index, state, at_end) + escape)
        others = int64(frontier.size[0])
        _fork(index, state, share, parent, first, others, scanned, least, frontier)
        left = share * escape
        state = shorter
        if state <= 0 or left < min_probability:
            break
    _keep(frontier, first, paths, min_probability)
    for node in range(first, frontier.size[0]):
        prefetch_after(index, int64(frontier.states[node]))


@part
def _seen(index: Index, state: int, at_end: bool) -> int:
    """Returns the number of occurrences of a context that a token has followed.

    `at_end`: one occurrence is the end of a text, without a token after it. The end of the prompt
    is followed by one token per response.
    """
    states = index.states
    followed = states[state, COUNT] - int64(at_end)
    return int64(max(followed, states[states[state, NEXT], COUNT]))


@part
def _escape(index: Index, state: int) -> float:
    """Returns the weight of the back-off after a context, in occurrences."""
    states = index.states
    ways = float64(states[state, CHILDREN])
    return ways * (1.0 + SHORT / float64(states[state, LENGTH]))


@part
def _fork(
    index: Index,
    state: int,
    share: float,
    parent: int,
    first: int,
    others: int,
    scanned: int,
    min_probability: float,
    frontier: Frontier,
) -> None:
    """Adds the tokens after a context to the frontier, with `share` per occurrence.

    The nodes first..others are of longer contexts, and may have the same tokens.
    """
    states, edges = index.states, index.edges
    likeliest = int64(states[state, NEXT])
    prob = share * states[likeliest, COUNT]
    _push(frontier, first, others, states[state, TOKEN], parent, prob, likeliest, min_probability)
    if prob < min_probability:  # and so are the others
        return
    edge = int64(states[state, EDGE])
    for _ in range(scanned):
        if edge == 0:
            break
        to = int64(edges[edge, TO])
        if to != likeliest:
            prob = share * states[to, COUNT]
            _push(frontier, first, others, edges[edge, LABEL], parent, prob, to, min_probability)
        edge = int64(edges[edge, SIBLING])


@part
def _push(
    frontier: Frontier,
    first: int,
    others: int,
    token: int,
    parent: int,
    prob: float,
    state: int,
    min_probability: float,
) -> None:
    """Adds a node, or adds its probability to the node of first..others with the same token."""
    tokens, parents, probs, states, size = frontier
    for node in range(first, others):
        if tokens[node] == token:
            probs[node] = min(float64(1.0), probs[node] + prob)
            return
    if prob >= min_probability and size[0] < FRONTIER:
        node = int64(size[0])
        tokens[node] = token
        parents[node] = parent
        probs[node] = prob
        states[node] = state
        size[0] += 1


@part
def _keep(frontier: Frontier, first: int, paths: int, min_probability: float) -> None:
    """Keeps, of the nodes from `first` on, the `paths` likeliest above the minimum."""
    probs, size = frontier.probs, frontier.size
    while size[0] > first:
        least = int64(first)
        for node in range(first + 1, size[0]):
            if probs[node] <= probs[least]:
                least = int64(node)
        if size[0] - first <= paths and probs[least] >= min_probability:
            return
        _remove(frontier, least)


@part
def _take(frontier: Frontier, drafted: Drafted, count: int) -> None:
    """Moves the likeliest node into the draft."""
    best = int64(0)
    for node in range(1, frontier.size[0]):
        if frontier.probs[node] > frontier.probs[best]:
            best = int64(node)
    drafted.tokens[count] = frontier.tokens[best]
    drafted.parents[count] = frontier.parents[best]
    drafted.probs[count] = frontier.probs[best]
    drafted.states[count] = frontier.states[best]
    _remove(frontier, best)


@part
def _remove(frontier: Frontier, node: int) -> None:
    tokens, parents, probs, states, size = frontier
    size[0] -= 1
    last = int64(size[0])
    tokens[node] = tokens[last]
    parents[node] = parents[last]
    probs[node] = probs[last]
    states[node] = states[last]
