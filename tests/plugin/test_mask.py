"""The mask of a verification hides from a node what its tree hides, and nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.plugin.speculation.mask import full_mask


@given(
    seq_lens=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    width=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_a_node_attends_to_all_tokens_before_the_draft_and_to_what_its_tree_allows(
    seq_lens: list[int], width: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    tree = torch.rand((len(seq_lens), width, width), generator=random) < 0.5
    lens = torch.tensor(seq_lens)
    mask = full_mask(tree, lens, lens)
    begin = 0
    for row, length in enumerate(seq_lens):
        matrix = mask[begin : begin + width * (length + width)].view(width, length + width)
        assert matrix[:, :length].all()
        assert torch.equal(matrix[:, length:], tree[row])
        begin += matrix.numel()
    assert begin == mask.numel()
