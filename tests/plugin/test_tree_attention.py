"""The masks of draft trees on a CPU."""

import torch

from seer_sgl.plugin.cpu.tree_attention import within

NEVER = float("-inf")


def test_a_node_attends_within_the_window_before_its_position_whatever_its_number() -> None:
    # Three tokens, then a root with the children 1 and 2; node 3 follows node 2.
    tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    mask = torch.cat((torch.zeros(4, 3), torch.zeros(4, 4).masked_fill(~tree, NEVER)), dim=1)
    assert (within(mask, 1) == 0).int().tolist() == [
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
    assert torch.equal(within(mask, 5), mask), "the window holds all of them"
    assert within(mask, -1) is within(mask, None) is mask
