"""A priority queue of items that can be ranked again."""

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

MOST_VOID = 64  # void entries that a queue may hold, in addition to one per valid entry
T = TypeVar("T")


class UpdatableQueue(Generic[T]):
    """Lowest rank first. A new rank of an item makes its older entry void, which costs O(log n).

    A void entry is dropped when it reaches the front, or when most entries are void: one that never
    gets there would keep its item in memory. Items are compared by identity.
    """

    def __init__(self) -> None:
        # The parts of a rank, the turn and the item. One flat tuple is one object to collect.
        self._heap: list[tuple[Any, ...]] = []
        self._turns: dict[int, int] = {}  # of the valid entry, by the item's `id`
        self._turn = 0

    def put(self, item: T, *rank: Any) -> None:
        """Adds an item, or changes its rank."""
        self._turn += 1
        self._turns[id(item)] = self._turn
        heapq.heappush(self._heap, (*rank, self._turn, item))
        if len(self._heap) > MOST_VOID + 2 * len(self._turns):
            self._heap[:] = [entry for entry in self._heap if self._valid(entry)]
            heapq.heapify(self._heap)

    def remove(self, item: T) -> None:
        """Removes an item if it is there."""
        self._turns.pop(id(item), None)

    def first(self) -> T | None:
        """Returns the item of the lowest rank; None if there is none."""
        while self._heap:
            if self._valid(self._heap[0]):
                item: T = self._heap[0][-1]
                return item
            heapq.heappop(self._heap)
        return None

    def __iter__(self) -> Iterator[T]:
        """Yields all items, in no order."""
        return (entry[-1] for entry in self._heap if self._valid(entry))

    def __len__(self) -> int:
        """The number of items, without void entries."""
        return len(self._turns)

    def _valid(self, entry: tuple[Any, ...]) -> bool:
        turn: int = entry[-2]
        return self._turns.get(id(entry[-1])) == turn
