"""The walk along the target's draws equals a simple one, and its outcome reaches the planner."""

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.tree import lay_out
from seer_sgl.plugin.speculation.verify import flat
from seer_sgl.plugin.speculation.walk import Nodes, outcome_of, root_alone, upload, walk
from tests.draft.trees import Tree, as_drafts, trees


def on_device(roots: list[int], drafts: Drafts, width: int) -> Nodes:
    return upload(lay_out(drafts, width), torch.tensor(roots))


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 11), st.randoms())
def test_what_the_target_drew_is_followed_as_far_as_it_was_drafted(
    rows: list[Tree], width: int, dice: random.Random
) -> None:
    nodes = on_device([9] * len(rows), as_drafts(rows), width)
    draws = [[dice.randint(0, 2) for _ in range(width)] for _ in rows]
    walked = walk(nodes, torch.tensor(draws, dtype=torch.int32))
    outcome = outcome_of(walked)()
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
    nodes = on_device([5], as_drafts([[]]), 4)
    assert walk(nodes, torch.full((1, 4), 5)).lens.tolist() == [1]


def test_equal_siblings_count_once() -> None:
    twins = [(-1, 1), (-1, 1), (0, 2), (1, 2)]
    nodes = on_device([5], as_drafts([twins]), 5)
    walked = walk(nodes, torch.tensor([[1, 2, 2, 0, 0]]))
    assert walked.lens.tolist() == [3]
    assert (walked.path[0, 3:] == -1).all()


def test_the_device_puts_the_root_where_the_host_does_not_know_it() -> None:
    drafts = as_drafts([[(-1, 1), (0, 2)], []])
    nodes = on_device([7, 8], drafts, 4)
    assert nodes.tokens.tolist() == [[7, 1, 2, 7], [8, 8, 8, 8]], "padding holds the root"


def test_the_root_alone_needs_nothing_from_the_host_and_is_always_accepted() -> None:
    alone, laid_out = root_alone(torch.tensor([7, 8])), on_device([7, 8], as_drafts([[], []]), 1)
    for one, other in zip(alone, laid_out, strict=True):
        assert one.tolist() == other.tolist()
        assert one.dtype == other.dtype
    walked = walk(alone, torch.tensor([[3], [4]]))
    assert (walked.path.tolist(), walked.lens.tolist()) == ([[0], [0]], [1, 1])
    # A tensor without data: reading a value would raise.
    nowhere = walk(
        root_alone(torch.empty(2, dtype=torch.int64, device="meta")),
        torch.empty((2, 1), dtype=torch.int32, device="meta"),
    )
    assert nowhere.lens.shape == (2,)
