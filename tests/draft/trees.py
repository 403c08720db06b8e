"""Draft trees for tests."""

import numpy as np
from hypothesis import strategies as st

from seer_sgl.draft.drafter import Drafts

Tree = list[tuple[int, int]]  # (parent or -1, token), a parent before its children


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draws up to 9 nodes over 3 tokens; no node has two children with the same token."""
    size = draw(st.integers(0, 9))
    tree: Tree = []
    for _ in range(size):
        kind = (draw(st.integers(-1, len(tree) - 1)), draw(st.integers(0, 2)))
        if kind not in tree:
            tree.append(kind)
    return tree


def as_drafts(rows: list[Tree]) -> Drafts:
    """Returns the trees as a drafter does, with garbage after their end."""
    shape = (len(rows), max(map(len, rows), default=0))
    tokens, parents = np.full(shape, 77, np.int32), np.full(shape, 55, np.int32)
    for row, tree in enumerate(rows):
        parents[row, : len(tree)] = [parent for parent, _ in tree]
        tokens[row, : len(tree)] = [token for _, token in tree]
    counts = np.array([len(tree) for tree in rows], np.int32)
    probs = np.full(shape, np.nan, np.float32)
    return Drafts(tokens, parents, probs, tokens, counts, counts)
