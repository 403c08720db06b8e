"""Layouts and accepted paths equal a simple implementation that follows the links."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import Accepted, Layout, accept, lay_out

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


def ancestors(tree: Tree, node: int) -> list[int]:
    """Returns the layout numbers of a node and its ancestors; node -1 is the root."""
    return [node + 1, *(ancestors(tree, tree[node][0]) if node >= 0 else [])]


@given(st.lists(trees(), max_size=4), st.integers(1, 11))
def test_a_layout_is_what_its_parents_say(rows: list[Tree], width: int) -> None:
    roots = np.arange(len(rows)) + 100
    layout = lay_out(roots, as_drafts(rows), width)
    for row, whole in enumerate(rows):
        tree = whole[: width - 1]
        used = len(tree) + 1
        assert layout.tokens[row, :used].tolist() == [100 + row, *(token for _, token in tree)]
        for node in range(used):
            above = ancestors(tree, node - 1)
            assert layout.depths[row, node] == len(above) - 1
            assert np.flatnonzero(layout.mask[row, node]).tolist() == sorted(above)
            children = [child + 1 for child, (parent, _) in enumerate(tree) if parent == node - 1]
            linked, link = [], layout.first_child[row, node]
            while link >= 0:
                linked.append(int(link))
                link = layout.next_sibling[row, link]
            assert linked == children
        for node in range(used, width):  # padding
            assert layout.tokens[row, node] == 100 + row
            assert layout.depths[row, node] == 1
            assert np.flatnonzero(layout.mask[row, node]).tolist() == [0, node]
            assert layout.first_child[row, node] == layout.next_sibling[row, node] == -1


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 11), st.randoms())
def test_what_the_target_drew_is_followed_as_far_as_it_was_drafted(
    rows: list[Tree], width: int, dice: random.Random
) -> None:
    layout = lay_out([9] * len(rows), as_drafts(rows), width)
    targets = np.array([[dice.randint(0, 2) for _ in range(width)] for _ in rows])
    accepted = accept(layout, targets)
    for row, whole in enumerate(rows):
        tree = whole[: width - 1]
        path = [-1]
        while (path[-1], targets[row, path[-1] + 1]) in tree:
            path.append(tree.index((path[-1], targets[row, path[-1] + 1])))
        assert accepted.counts[row] == len(path)
        assert accepted.nodes[row, : len(path)].tolist() == [node + 1 for node in path]
        assert (accepted.nodes[row, len(path) :] == -1).all()
        emitted = targets[row, accepted.nodes[row, : len(path)]]
        assert emitted[:-1].tolist() == [tree[node][1] for node in path[1:]]


def test_padding_is_never_accepted() -> None:
    layout = lay_out([5], as_drafts([[]]), 4)
    assert accept(layout, [[5, 5, 5, 5]]).counts.tolist() == [1]


def test_no_sequences_are_no_trees() -> None:
    layout = lay_out([], as_drafts([]), 4)
    assert layout.mask.shape == (0, 4, 4)
    assert accept(layout, np.empty((0, 4))).counts.shape == (0,)


def test_shapes_that_do_not_fit_are_refused() -> None:
    layout = lay_out([1], as_drafts([[(-1, 1)]]), 2)
    assert isinstance(layout, Layout)
    for roots, width in (([1, 2], 2), ([1], 0)):
        with pytest.raises(ValueError, match="width"):
            lay_out(roots, as_drafts([[(-1, 1)]]), width)
    with pytest.raises(ValueError, match="targets"):
        accept(layout, [[1, 2, 3]])
    assert isinstance(accept(layout, [[1, 2]]), Accepted)
