"""First fit: finds the first of many values that is large enough, in O(log n)."""

ABSENT = -1  # below every value that is searched for


class FirstFit:
    """A sequence of integers, grown on demand, that finds its first item of a minimum size.

    It is a segment tree of maxima: `_tree[1]` is the largest item, the items are the leaves.
    """

    def __init__(self) -> None:
        self._size = 1
        self._tree = [ABSENT] * 2

    @property
    def largest(self) -> int:
        """The largest item; ABSENT if there is none."""
        return self._tree[1]

    def put(self, index: int, value: int) -> None:
        """Sets an item; ABSENT removes it."""
        while index >= self._size:
            self._double()
        tree = self._tree
        node = index + self._size
        tree[node] = value
        while node > 1:
            sibling = tree[node ^ 1]
            value = sibling if sibling > value else value  # max() costs three times as much
            node >>= 1
            if tree[node] == value:
                return
            tree[node] = value

    def first_at_least(self, least: int) -> int | None:
        """Returns the lowest index whose item is at least `least` (>= 0); None if there is none."""
        tree = self._tree
        if tree[1] < least:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if tree[node] < least:
                node += 1
        return node - self._size

    def _double(self) -> None:
        leaves = self._tree[self._size :]
        self._size *= 2
        self._tree = [ABSENT] * self._size + leaves + [ABSENT] * len(leaves)
        for node in range(self._size - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node], self._tree[2 * node + 1])
