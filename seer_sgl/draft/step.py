"""Two compiled entry points: `extend` grows one sequence; `step` grows and drafts a whole batch.

Both stop when an array is full and return where they stopped. The caller enlarges the array and
calls again, so no array is ever reallocated during a kernel.
"""

import numpy as np
from numpy.typing import NDArray

from .automaton import LENGTH, LINK, MAX_TOKEN, SOURCE, append, has_room, index_at, prefetch_after
from .compiled import array_at, int64, kernel, part
from .proposals import Drafted, context_of, frontier_at, propose

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

# A sequence's row: the row of its group, its number, the state it ends in, its response tokens.
GROUP, NUMBER, LAST, TOKENS = range(4)
SEQUENCE_COLUMNS = 4

# Results of a step other than the number of a group that needs room.
DONE, BAD_TOKEN, BAD_COUNTS, BAD_SLOT = -1, -2, -3, -4


@part
def _extend(groups: Int64, sequence: Int64, tokens: Int32, first: int, end: int) -> int:
    """Appends tokens[first:end] to a sequence while there is room; returns where it stopped."""
    index = index_at(groups, sequence[GROUP])
    last = sequence[LAST]
    while first < end and has_room(index, last):
        last = append(index, last, int64(tokens[first]), sequence[NUMBER])
        sequence[TOKENS] += 1
        first += 1
    sequence[LAST] = last
    return first


@kernel("int64(int64[:,::1], int64[::1], int32[::1], int64)")
def extend(groups: Int64, sequence: Int64, tokens: Int32, first: int) -> int:
    """Appends tokens[first:] to a sequence while its group has room; returns where it stopped."""
    return _extend(groups, sequence, tokens, first, tokens.size)


@part
def _all_tokens(tokens: Int32) -> bool:
    for token in tokens:  # noqa: SIM110 (numba has no generators)
        if token < 0 or token > MAX_TOKEN:
            return False
    return True


@kernel("boolean(int32[::1])")
def all_tokens(tokens: Int32) -> bool:
    """Returns whether all tokens are valid ids, 0 to MAX_TOKEN."""
    return _all_tokens(tokens)


@part
def _argument_error(slots: Int64, rows: Int64, tokens: Int32, counts: Int32) -> int:
    """Returns the error code of the arguments of a step, or DONE."""
    if not _all_tokens(tokens):
        return BAD_TOKEN
    end = int64(0)
    for row in range(rows.size):
        if rows[row] < 0 or rows[row] >= len(slots):
            return BAD_SLOT
        if counts[row] < 0:
            return BAD_COUNTS
        end += counts[row]
    return DONE if end == tokens.size else BAD_COUNTS


@part
def _drafted_at(drafts: Int32, parents: Int32, probs: Float32, sources: Int32, row: int) -> Drafted:
    width = drafts.shape[1]
    at = 4 * width * row
    return Drafted(
        array_at(int64(drafts.ctypes.data) + at, (width,), np.int32),
        array_at(int64(parents.ctypes.data) + at, (width,), np.int32),
        array_at(int64(probs.ctypes.data) + at, (width,), np.float32),
        array_at(int64(sources.ctypes.data) + at, (width,), np.int32),
    )


@part
def _prefetch_row(groups: Int64, sequences: Int64, slots: Int64, rows: Int64, row: int) -> None:
    """Starts to load what the draft of a row reads first: most texts end in a context that has no
    continuation, but whose longest shorter context has."""
    if row < rows.size and slots[rows[row], 0] > 0:
        sequence = sequences[slots[rows[row], 0] - 1]
        index = index_at(groups, sequence[GROUP])
        prefetch_after(index, int64(index.states[sequence[LAST], LINK]))


@kernel(
    "int64(int64[:,::1], int64[:,::1], int64[:,::1],"
    " int64[::1], int32[::1], int32[::1], int32[::1], int64, float64, int64[::1], int64,"
    " int32[:,::1], int32[:,::1], float32[:,::1], int32[:,::1], int32[::1], int32[::1])"
)
def step(
    groups: Int64,
    sequences: Int64,
    slots: Int64,
    rows: Int64,
    tokens: Int32,
    counts: Int32,
    budgets: Int32,
    paths: int,
    min_probability: float,
    progress: Int64,
    frontier_address: int,
    drafts: Int32,
    parents: Int32,
    probs: Float32,
    sources: Int32,
    drafted: Int32,
    matches: Int32,
) -> int:
    """Appends each row's tokens to its sequence, then drafts for all rows.

    `slots`: 1 + the sequence of each slot, or 0. `rows`: the slot of each row of the batch.
    `progress`: the row and the token to continue with, (0, 0) at first. Returns DONE, the group
    that needs room, or an error code. After an error nothing was appended.
    `frontier_address`: of FRONTIER_BYTES to work in.
    """
    error = _argument_error(slots, rows, tokens, counts)
    if error != DONE:
        return error
    end = int64(0)
    first = int64(progress[1])
    for row in range(rows.size):
        end += counts[row]
        if row < progress[0]:
            continue
        first = max(first, end - counts[row])
        number = slots[rows[row], 0] - 1
        if number >= 0:
            first = _extend(groups, sequences[number], tokens, first, end)
            if first < end:
                progress[0], progress[1] = row, first
                return int64(sequences[number, GROUP])
    frontier = frontier_at(frontier_address)
    for row in range(rows.size):
        _prefetch_row(groups, sequences, slots, rows, row + 1)
        drafted[row] = matches[row] = 0
        number = slots[rows[row], 0] - 1
        if number < 0 or budgets[row] <= 0:
            continue
        index = index_at(groups, sequences[number, GROUP])
        context = context_of(index, sequences[number, LAST])
        if context == 0:
            continue
        target = _drafted_at(drafts, parents, probs, sources, row)
        budget = int64(budgets[row])
        count = propose(index, context, budget, paths, min_probability, frontier, target)
        for node in range(count):  # `propose` has written states to `sources`
            sources[row, node] = index.states[sources[row, node], SOURCE]
        drafted[row] = count
        matches[row] = index.states[context, LENGTH]
    return DONE
