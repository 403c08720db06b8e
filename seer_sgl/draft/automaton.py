"""The index of a group: a generalized suffix automaton over its prompt and all its responses.

A state stands for the contexts (token strings) that end at the same places of the group's texts.
An edge leads to the contexts that are one token longer on the right. The suffix link leads to the
longest shorter contexts that occur at more places. Texts grow online and interleaved, one token at
a time: the construction of Blumer et al. (1985), for several texts.

All numbers are in int32 rows at addresses, so one kernel serves the indexes of all groups. A
state's row holds its likeliest next token. A state with several next tokens also has a list of
edges. A hash table finds the edges; it grows by one bucket per edge (linear hashing, Litwin 1980),
so no token has to wait for a rebuild of the table.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import array_at, int64, part, prefetch

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

# A state and a token share the hash's 64-bit key. The largest token is below those that SGLang has
# for images (MM_PAD_SHIFT_VALUE).
TOKEN_BITS = 19
MAX_TOKEN = (1 << TOKEN_BITS) - 1

# A state's row, 32 bytes. State 0 is the empty context.
LENGTH, LINK, COUNT, SOURCE, TOKEN, NEXT, EDGE, CHILDREN = range(8)
STATE_COLUMNS = 8
# An edge's row; edge 0 means no edge. A state with several next tokens has an edge for each.
FROM, LABEL, TO, SIBLING, CHAIN = range(5)
EDGE_COLUMNS = 5
# A group's row: the addresses of its arrays, their room in rows, and the rows in use. The room for
# buckets equals the room for edges.
(
    STATES_AT,
    EDGES_AT,
    BUCKETS_AT,
    STATE_ROOM,
    EDGE_ROOM,
    STATES,
    EDGES,
    BUCKETS,
    LOW_BUCKETS,  # the largest power of two not above the number of buckets
    TOKENS,
) = range(10)
GROUP_COLUMNS = 10

# Suffixes whose counts a token updates. In text, fewer suffixes than this occur elsewhere too; a
# loop of one token has as many as its length.
COUNTED_SUFFIXES = 32

LISTED = 4  # up to this number, edges of a state are found by scanning its list


class Index(NamedTuple):
    """The arrays of one group."""

    states: Int32
    edges: Int32
    buckets: Int32
    group: Int64  # its row


@part
def index_at(groups: Int64, number: int) -> Index:
    """Returns the index that the row `number` of the groups describes."""
    address = int64(groups.ctypes.data) + 8 * GROUP_COLUMNS * number
    group = array_at(address, (GROUP_COLUMNS,), np.int64)
    return Index(
        array_at(group[STATES_AT], (group[STATE_ROOM], STATE_COLUMNS), np.int32),
        array_at(group[EDGES_AT], (group[EDGE_ROOM], EDGE_COLUMNS), np.int32),
        array_at(group[BUCKETS_AT], (group[EDGE_ROOM],), np.int32),
        group,
    )


@part
def prefetch_after(index: Index, state: int) -> None:
    """Starts to load what is read first for the tokens after a context: the rows of its likeliest
    next token, of its newest edge, and of its longest shorter context."""
    states, group = index.states, index.group
    prefetch(group[STATES_AT] + 4 * STATE_COLUMNS * int64(states[state, NEXT]))
    prefetch(group[EDGES_AT] + 4 * EDGE_COLUMNS * int64(states[state, EDGE]))
    prefetch(group[STATES_AT] + 4 * STATE_COLUMNS * int64(states[state, LINK]))


@part
def has_room(index: Index, last: int) -> bool:
    """Returns whether a token after state `last` is certain to fit.

    It adds a state and perhaps a clone. It adds one edge to each suffix, or two at a first fork. It
    may copy the edges of one state; the empty context has the most edges.
    """
    states, group = index.states, index.group
    edges = 2 * (int64(states[last, LENGTH]) + 1) + int64(states[0, CHILDREN])
    return bool(group[STATES] + 2 <= group[STATE_ROOM] and group[EDGES] + edges <= group[EDGE_ROOM])


@part
def append(index: Index, last: int, token: int, source: int) -> int:
    """Extends the text that ends in state `last` by a token. Returns the text's new last state.

    `source` is written to the contexts that end with the token.
    """
    states, group = index.states, index.group
    state = _find(index, last, token)
    if state != 0:
        if states[state, LENGTH] != states[last, LENGTH] + 1:
            state = _clone(index, last, token, state)
    else:
        state = int64(group[STATES])
        group[STATES] = state + 1
        states[state, LENGTH] = states[last, LENGTH] + 1
        states[state, TOKEN] = -1
        suffix, same = int64(last), int64(0)
        while suffix >= 0:
            same = _find(index, suffix, token)
            if same != 0:
                break
            _add(index, suffix, token, state)
            suffix = int64(states[suffix, LINK])
        if suffix < 0:
            states[state, LINK] = 0
        elif states[suffix, LENGTH] + 1 == states[same, LENGTH]:
            states[state, LINK] = same
        else:
            states[state, LINK] = _clone(index, suffix, token, same)
    _count(index, last, state, token, source)
    group[TOKENS] += 1
    return state


@part
def _count(index: Index, last: int, state: int, token: int, source: int) -> None:
    """Counts the token after the suffixes of `last`, longest first. It led from `last` to `state`.

    A shorter suffix needs no look-up: its token leads to the suffix of `state` of that length.
    """
    states = index.states
    suffix = int64(last)
    states[state, COUNT] += 1
    states[state, SOURCE] = source
    for _ in range(COUNTED_SUFFIXES):
        shorter = int64(states[state, LINK])
        if states[shorter, LENGTH] > states[suffix, LENGTH]:
            state = shorter
            states[state, COUNT] += 1
            states[state, SOURCE] = source
        likeliest = states[suffix, NEXT]
        if likeliest != state and states[state, COUNT] >= states[likeliest, COUNT]:
            states[suffix, TOKEN] = token
            states[suffix, NEXT] = state
        suffix = int64(states[suffix, LINK])
        if suffix < 0:
            break


@part
def _clone(index: Index, suffix: int, token: int, state: int) -> int:
    """Splits off and returns the contexts of `state` no longer than `suffix` and the token."""
    states, edges, group = index.states, index.edges, index.group
    clone = int64(group[STATES])
    group[STATES] = clone + 1
    states[clone, :] = states[state, :]
    states[clone, LENGTH] = states[suffix, LENGTH] + 1
    states[clone, EDGE] = 0
    edge = states[state, EDGE]
    while edge != 0:
        _list(index, clone, edges[edge, LABEL], edges[edge, TO])
        if states[clone, CHILDREN] > LISTED:
            _enter(index, int64(states[clone, EDGE]))
        edge = edges[edge, SIBLING]
    states[state, LINK] = clone
    shorter = int64(suffix)
    while shorter >= 0:
        if states[shorter, EDGE] != 0:
            edge = _edge(index, shorter, token)
            if edges[edge, TO] != state:
                break
            edges[edge, TO] = clone
        elif states[shorter, TOKEN] != token or states[shorter, NEXT] != state:
            break
        if states[shorter, TOKEN] == token:
            states[shorter, NEXT] = clone
        shorter = int64(states[shorter, LINK])
    return clone


@part
def _find(index: Index, state: int, token: int) -> int:
    """Returns the state that the token leads to; 0: none."""
    states = index.states
    if states[state, TOKEN] == token:
        return int64(states[state, NEXT])
    if states[state, EDGE] == 0:
        return int64(0)
    return int64(index.edges[_edge(index, state, token), TO])


@part
def _edge(index: Index, state: int, token: int) -> int:
    """Returns the token's edge in the state's list; 0: none."""
    edges = index.edges
    if index.states[state, CHILDREN] <= LISTED:
        edge = int64(index.states[state, EDGE])
        while edge != 0 and edges[edge, LABEL] != token:
            edge = int64(edges[edge, SIBLING])
        return edge
    edge = int64(index.buckets[_bucket(index.group, _hash(state, token))])
    while edge != 0 and (edges[edge, LABEL] != token or edges[edge, FROM] != state):
        edge = int64(edges[edge, CHAIN])
    return edge


@part
def _add(index: Index, state: int, token: int, to: int) -> None:
    """Adds an edge to the state, for a token that has none."""
    states, edges = index.states, index.edges
    children = states[state, CHILDREN] + 1
    states[state, CHILDREN] = children
    if children == 1:
        states[state, TOKEN] = token
        states[state, NEXT] = to
        return
    if children == 2:
        _list(index, state, states[state, TOKEN], states[state, NEXT])
    _list(index, state, token, to)
    if children > LISTED:
        edge = int64(states[state, EDGE])
        _enter(index, edge)
        if children == LISTED + 1:  # the earlier edges are not in the table yet
            edge = int64(edges[edge, SIBLING])
            while edge != 0:
                _enter(index, edge)
                edge = int64(edges[edge, SIBLING])


@part
def _list(index: Index, state: int, token: int, to: int) -> None:
    """Puts an edge into the state's list."""
    states, edges, group = index.states, index.edges, index.group
    edge = group[EDGES]
    group[EDGES] = edge + 1
    edges[edge, FROM] = state
    edges[edge, LABEL] = token
    edges[edge, TO] = to
    edges[edge, SIBLING] = states[state, EDGE]
    states[state, EDGE] = edge


@part
def _enter(index: Index, edge: int) -> None:
    """Puts an edge into the hash table, and splits one bucket."""
    edges, buckets, group = index.edges, index.buckets, index.group
    bucket = _bucket(group, _hash(edges[edge, FROM], edges[edge, LABEL]))
    edges[edge, CHAIN] = buckets[bucket]
    buckets[bucket] = edge
    low, new = group[LOW_BUCKETS], group[BUCKETS]
    group[BUCKETS] = new + 1
    if new + 1 == 2 * low:
        group[LOW_BUCKETS] = new + 1
    moved = int64(buckets[new - low])
    buckets[new - low] = 0
    while moved != 0:
        following = int64(edges[moved, CHAIN])
        bucket = _hash(edges[moved, FROM], edges[moved, LABEL]) & (2 * low - 1)
        edges[moved, CHAIN] = buckets[bucket]
        buckets[bucket] = moved
        moved = following


@part
def _hash(state: int, token: int) -> int:
    # Multiplicative hashing. Both are cast, because numba mixes int64 and uint64 to a float.
    key = (np.uint64(state) << np.uint64(TOKEN_BITS)) | np.uint64(token)
    return int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33))


@part
def _bucket(group: Int64, number: int) -> int:
    bucket = number & (2 * group[LOW_BUCKETS] - 1)
    return int64(bucket if bucket < group[BUCKETS] else bucket & (group[LOW_BUCKETS] - 1))
