"""The walk along the target's draws equals a simple one, and its outcome reaches the planner."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft.tree import lay_out
from seer_sgl.plugin.speculation.outcome import WalkOutcome
from seer_sgl.plugin.speculation.verify import flat
from seer_sgl.plugin.speculation.walk import upload, walk
from tests.draft.trees import Tree, as_drafts, trees


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 11), st.randoms())
def test_what_the_target_drew_is_followed_as_far_as_it_was_drafted(
    rows: list[Tree], width: int, dice: random.Random
) -> None:
    nodes = upload(lay_out([9] * len(rows), as_drafts(rows), width), "cpu")
    draws = [[dice.randint(0, 2) for _ in range(width)] for _ in rows]
    walked = walk(nodes, torch.tensor(draws, dtype=torch.int32))
    outcome = WalkOutcome(walked)()
    for row, whole in enumerate(rows):
        tree = whole[: width - 1]
        path = [-1]
        while (path[-1], draws[row][path[-1] + 1]) in tree:
            path.append(tree.index((path[-1], draws[row][path[-1] + 1])))
        places = [node + 1 for node in path] + [-1] * (width - len(path))
        assert walked.path[row].tolist() == outcome.nodes[row].tolist() == places
        assert walked.lens[row] == outcome.counts[row] == len(path)
        assert flat(walked)[row].tolist() == [
            node + row * width if node >= 0 else -1 for node in places
        ]
    assert outcome.nodes.dtype == outcome.counts.dtype == np.int32
    assert outcome.nodes.flags["C_CONTIGUOUS"]


def test_padding_is_never_accepted() -> None:
    nodes = upload(lay_out([5], as_drafts([[]]), 4), "cpu")
    assert walk(nodes, torch.full((1, 4), 5)).lens.tolist() == [1]


def test_equal_siblings_count_once() -> None:
    twins = [(-1, 1), (-1, 1), (0, 2), (1, 2)]
    nodes = upload(lay_out([5], as_drafts([twins]), 5), "cpu")
    walked = walk(nodes, torch.tensor([[1, 2, 2, 0, 0]]))
    assert walked.lens.tolist() == [3]
    assert (walked.path[0, 3:] == -1).all()
