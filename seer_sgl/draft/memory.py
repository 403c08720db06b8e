"""Tables that grow: int32 rows that grow in place, and int64 rows to allocate and release."""

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

# Linux moves the pages of a growing mapping (mremap) instead of copying them, so growth is fast.
# Fresh pages are zero and take memory when they are first written.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_HUGE = 1 << 22  # bytes; from this size on huge pages: faster access, freed ten times faster


class Rows:
    """Room for rows of int32, zero at first, at `address` until `reserve` or `free`. Linux only."""

    def __init__(self, columns: int, room: int) -> None:
        self.columns = columns
        self._map = mmap.mmap(-1, self._size(room), flags=_FLAGS)
        self._settle()

    def reserve(self, room: int) -> None:
        """Grows to at least `room` rows."""
        if room > self.room:
            self._map.resize(self._size(room))
            self._settle()

    def view(self) -> NDArray[np.int32]:
        """Returns int32[room, columns]; while it exists the rows can neither grow nor be freed."""
        return np.frombuffer(self._map, np.int32, self.room * self.columns).reshape(self.room, -1)

    def free(self) -> None:
        """Releases the memory."""
        self._map.close()

    def _size(self, room: int) -> int:
        return -(-room * 4 * self.columns // mmap.PAGESIZE) * mmap.PAGESIZE

    def _settle(self) -> None:
        self.room = len(self._map) // (4 * self.columns)
        self.address = self.view().ctypes.data
        if len(self._map) >= _HUGE:
            with contextlib.suppress(OSError):  # a Linux without them
                self._map.madvise(mmap.MADV_HUGEPAGE)


class Table:
    """Rows of int64: `rows` [room, columns]. Free rows are zero."""

    def __init__(self, columns: int, room: int = 64) -> None:
        self.rows = np.zeros((room, columns), np.int64)
        self._free = list(range(room - 1, -1, -1))

    def take(self) -> int:
        """Allocates a row and returns its number. `rows` may be another array afterwards."""
        if not self._free:
            room = len(self.rows)
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
            self._free = list(range(2 * room - 1, room - 1, -1))
        return self._free.pop()

    def give(self, number: int) -> None:
        """Releases a row."""
        self.rows[number] = 0
        self._free.append(number)
