"""Drafts for decoding sequences, from the tokens of their groups (paper section 3).

There is one index per group, over its prompt and all its responses: `automaton` describes it, and
`proposals` describes its drafts. A decode step appends and drafts for its whole batch in one call
without the GIL.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import automaton, step
from .index import GroupIndex
from .memory import Table
from .proposals import FRONTIER_BYTES

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MIN_PROBABILITY = 0.03
_PROMPT = -1  # the source of tokens that only the prompt contains
_MAX_SEQUENCE = (1 << 31) - 1
_ARGUMENT_ERRORS = {
    step.BAD_TOKEN: f"a token id is not in 0..{automaton.MAX_TOKEN}",
    step.BAD_COUNTS: "counts do not add up to the number of tokens",
    step.BAD_SLOT: "there is no such slot",
}


class Drafts(NamedTuple):
    """Drafts of n sequences; W is the largest budget."""

    tokens: Int32  # [n, W], a parent before its children
    parents: Int32  # [n, W], index into the same row; -1: the sequence's last token
    probs: NDArray[np.float32]  # [n, W], smoothed probability of the path from the root
    sources: Int32  # [n, W], the last sequence with this token in this context; -1: the prompt
    counts: Int32  # [n], drafted tokens; the rest of a row is undefined
    matches: Int32  # [n], length of the context that the draft continues; 0: none


class Drafter:
    """The indexes of all groups of an engine. For one thread.

    `min_probability`: the minimum probability of a drafted path; the default is the best of
    `bench.draft_replay`. Raises ValueError for a token outside 0..2^19-1 or a sequence number
    outside 0..2^31-1. If a group is not open, every method except `close` raises KeyError.
    """

    def __init__(self, *, min_probability: float = MIN_PROBABILITY) -> None:
        if not 0 < min_probability <= 1:
            raise ValueError(f"min_probability {min_probability} is not in (0, 1]")
        self._min_probability = min_probability
        self._indexes: dict[str, GroupIndex] = {}
        self._groups = Table(automaton.GROUP_COLUMNS)
        self._sequences = Table(step.SEQUENCE_COLUMNS)
        self._slots = Table(1)  # 1 + the sequence's row, or 0
        self._by_row: dict[int, GroupIndex] = {}
        self._frontier = np.empty(FRONTIER_BYTES, np.uint8)
        self._frontier_at = int(self._frontier.ctypes.data)  # looked up once: it takes 2 us

    def open(self, group: str, prompt_ids: ArrayLike) -> None:
        """Creates the group's index with its prompt; does nothing if it is open."""
        if group in self._indexes:
            return
        prompt = _tokens(prompt_ids)
        row = self._groups.take()
        index = GroupIndex(row, self._groups.rows[row])
        self._indexes[group] = self._by_row[row] = index
        start = np.array([row, _PROMPT, 0, 0], np.int64)
        self._extend(index, start, prompt)
        index.prompt_end = int(start[step.LAST])

    def close(self, group: str) -> None:
        """Frees the index; its slots draft nothing from now on. Does nothing if it is not open."""
        index = self._indexes.pop(group, None)
        if index is None:
            return
        for slot in index.slots:
            self._slots.rows[slot] = 0
        for sequence in index.sequences.values():
            self._sequences.give(sequence)
        del self._by_row[index.number]
        self._groups.give(index.number)
        index.free()

    def append(self, group: str, sequence: int, tokens: ArrayLike) -> None:
        """Appends response tokens to a sequence; a new sequence starts after the prompt."""
        index = self._indexes[group]
        ids = _tokens(tokens)
        row = self._sequence(index, sequence)  # may grow the table
        self._extend(index, self._sequences.rows[row], ids)

    def attach(self, group: str, sequence: int) -> int:
        """Returns a slot for `step`, for a sequence that is being decoded."""
        index = self._indexes[group]
        row = self._sequence(index, sequence)
        slot = self._slots.take()
        self._slots.rows[slot] = row + 1
        index.slots.add(slot)
        return slot

    def detach(self, slot: int) -> None:
        """Releases a slot. The tokens of its sequence stay in the index."""
        row = int(self._slots.rows[slot, 0]) - 1
        if row >= 0:
            self._by_row[int(self._sequences.rows[row, step.GROUP])].slots.remove(slot)
        self._slots.give(slot)

    def step(
        self,
        slots: Int64,
        tokens: Int32,
        counts: Int32,
        budgets: Int32,
        paths: int,
    ) -> Drafts:
        """Does one decode step: appends each row's new tokens, then drafts for all rows.

        `slots` [n]. `tokens` [sum(counts)], row after row. `counts` [n]. `budgets` [n]: the maximum
        of drafted tokens, 0 to append only. `paths`: the maximum of continuations per token, 1 for
        a chain. Raises ValueError if the arguments contradict each other; nothing is appended then.
        """
        rows = np.ascontiguousarray(slots, np.int64)
        new = np.ascontiguousarray(tokens, np.int32)
        new_counts = np.ascontiguousarray(counts, np.int32)
        most = np.ascontiguousarray(budgets, np.int32)
        if not len(rows) == len(new_counts) == len(most):
            raise ValueError("slots, counts and budgets differ in length")
        shape = (len(rows), max(0, int(most.max(initial=0))))
        drafts = Drafts(
            np.empty(shape, np.int32),
            np.empty(shape, np.int32),
            np.empty(shape, np.float32),
            np.empty(shape, np.int32),
            np.empty(shape[0], np.int32),
            np.empty(shape[0], np.int32),
        )
        progress = np.zeros(2, np.int64)
        while True:
            outcome = step.step(
                self._groups.rows,
                self._sequences.rows,
                self._slots.rows,
                rows,
                new,
                new_counts,
                most,
                paths,
                self._min_probability,
                progress,
                self._frontier_at,
                *drafts,
            )
            if outcome == step.DONE:
                return drafts
            if outcome < 0:
                raise ValueError(_ARGUMENT_ERRORS[outcome])
            self._by_row[outcome].grow(self._groups.rows[outcome])

    def _sequence(self, index: GroupIndex, sequence: int) -> int:
        """Returns the sequence's row; a new sequence starts at the end of the prompt."""
        row = index.sequences.get(sequence)
        if row is None:
            if not 0 <= sequence <= _MAX_SEQUENCE:
                raise ValueError(f"the number {sequence} of a sequence is not in 0..2^31-1")
            row = index.sequences[sequence] = self._sequences.take()
            self._sequences.rows[row] = (index.number, sequence, index.prompt_end, 0)
        return row

    def _extend(self, index: GroupIndex, sequence: Int64, tokens: Int32) -> None:
        done = 0
        while (done := step.extend(self._groups.rows, sequence, tokens, done)) < len(tokens):
            index.grow(self._groups.rows[index.number])

    @property
    def tokens(self) -> int:
        """Tokens in all indexes, prompts included."""
        return int(self._groups.rows[:, automaton.TOKENS].sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in use."""
        used = self._groups.rows
        return 4 * int(
            used[:, automaton.STATES].sum() * automaton.STATE_COLUMNS
            + used[:, automaton.EDGES].sum() * automaton.EDGE_COLUMNS
            + used[:, automaton.BUCKETS].sum()
        )


def _tokens(ids: ArrayLike) -> Int32:
    """Returns the ids as int32. Raises ValueError if one is not a token id."""
    tokens = np.ascontiguousarray(ids, np.int32)
    if tokens.ndim != 1 or not step.all_tokens(tokens):
        raise ValueError(f"token ids are not a row of numbers in 0..{automaton.MAX_TOKEN}")
    return tokens
