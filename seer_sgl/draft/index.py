"""One group's index: its arrays and its sequences."""

import numpy as np
from numpy.typing import NDArray

from . import automaton
from .memory import Rows

Int64 = NDArray[np.int64]

_ROOM = 1 << 13  # states and edges at first, enough for a prompt and some short responses
_GROWTH = 4  # factor; unused room costs address space but no memory
_BUCKETS = 2  # in use at first


class GroupIndex:
    """The memory of an automaton. Its group's row holds the addresses and sizes for the kernels.

    `sequences`: the row of each sequence. `slots`: the attached slots. `prompt_end`: the state that
    all responses start from.
    """

    def __init__(self, number: int, row: Int64) -> None:
        self.number = number
        self.sequences: dict[int, int] = {}
        self.slots: set[int] = set()
        self.prompt_end = 0
        self._states = Rows(automaton.STATE_COLUMNS, _ROOM)
        self._edges = Rows(automaton.EDGE_COLUMNS, _ROOM)
        self._buckets = Rows(1, _ROOM)
        root = self._states.view()
        root[0, automaton.LINK] = root[0, automaton.TOKEN] = -1
        row[automaton.STATES] = row[automaton.EDGES] = 1  # the empty context; no edge
        row[automaton.BUCKETS] = _BUCKETS
        row[automaton.LOW_BUCKETS] = _BUCKETS
        self._describe(row)

    def grow(self, row: Int64) -> None:
        """Enlarges the arrays that are too small for a kernel to continue."""
        if row[automaton.STATES] + 2 > row[automaton.STATE_ROOM]:
            self._states.reserve(_GROWTH * self._states.room)
        else:
            self._edges.reserve(_GROWTH * self._edges.room)
            self._buckets.reserve(self._edges.room)
        self._describe(row)

    def free(self) -> None:
        """Releases the memory."""
        for rows in (self._states, self._edges, self._buckets):
            rows.free()

    def _describe(self, row: Int64) -> None:
        row[automaton.STATES_AT] = self._states.address
        row[automaton.EDGES_AT] = self._edges.address
        row[automaton.BUCKETS_AT] = self._buckets.address
        row[automaton.STATE_ROOM] = self._states.room
        row[automaton.EDGE_ROOM] = min(self._edges.room, self._buckets.room)
