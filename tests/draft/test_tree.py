"""Layouts equal a simple implementation that follows the parents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft.tree import followed, is_chains, lay_out

from .trees import Tree, as_drafts, trees


def ancestors(tree: Tree, node: int) -> list[int]:
    """Returns the layout numbers of a node and its ancestors; node -1 is the root."""
    return [node + 1, *(ancestors(tree, tree[node][0]) if node >= 0 else [])]


@given(st.lists(trees(), max_size=4), st.integers(1, 11))
def test_a_layout_is_what_its_parents_say(rows: list[Tree], width: int) -> None:
    layout = lay_out(as_drafts(rows), width)
    for row, whole in enumerate(rows):
        tree = whole[: width - 1]
        used = len(tree) + 1
        assert layout.tokens[row, :used].tolist() == [0, *(token for _, token in tree)]
        for node in range(used):
            above = ancestors(tree, node - 1)
            assert layout.depths[row, node] == len(above) - 1
            assert layout.parents[row, node] == (above[1] if node else -1)
            assert np.flatnonzero(layout.mask[row, node]).tolist() == sorted(above)
            children = [child + 1 for child, (parent, _) in enumerate(tree) if parent == node - 1]
            linked, link = [], layout.first_child[row, node]
            while link >= 0:
                linked.append(int(link))
                link = layout.next_sibling[row, link]
            assert linked == children
        for node in range(used, width):  # padding
            assert layout.tokens[row, node] == 0
            assert layout.depths[row, node] == 1
            assert np.flatnonzero(layout.mask[row, node]).tolist() == [0, node]
            assert layout.first_child[row, node] == layout.next_sibling[row, node] == -1
            assert layout.parents[row, node] == -1
    assert is_chains(layout) == all(
        [parent for parent, _ in tree[: width - 1]]
        == list(range(-1, min(len(tree), width - 1) - 1))
        for tree in rows
    )


@given(st.lists(st.tuples(trees(), st.lists(st.integers(0, 2), max_size=5)), max_size=4))
def test_what_was_written_is_followed_through_the_drafts(
    rows: list[tuple[Tree, list[int]]],
) -> None:
    tokens = np.array([token for _, written in rows for token in written], np.int32)
    counts = np.array([len(written) for _, written in rows], np.int64)
    drafts = as_drafts([tree for tree, _ in rows])
    told, path = followed(drafts, tokens, np.cumsum(counts) - counts, counts)
    for row, (tree, written) in enumerate(rows):
        depths = [len(ancestors(tree, node)) - 1 for node in range(len(tree))]
        deep = (node for node, depth in enumerate(depths) if written and depth > len(written))
        assert told.counts[row] == next(deep, len(tree))
        expected = [0] if written else []
        for token in written:
            links = enumerate(tree[: told.counts[row]])
            at = [node + 1 for node, link in links if link == (expected[-1] - 1, token)]
            if not at:
                break
            expected += at
        assert path.counts[row] == len(expected)
        assert path.nodes[row].tolist()[: len(expected)] == expected
        assert (path.nodes[row, len(expected) :] == -1).all()


def test_trees_without_a_node_are_refused() -> None:
    with pytest.raises(ValueError, match="width"):
        lay_out(as_drafts([[(-1, 1)]]), 0)
