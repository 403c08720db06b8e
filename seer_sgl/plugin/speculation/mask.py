"""The attention mask of a verification, in the layout that the attention backend reads."""

import torch


def attention_mask(
    tree: torch.Tensor, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor
) -> torch.Tensor:
    """Returns the flattened mask of `n` trees, in SGLang's layout for this device.

    tree: bool [n, width, width], true where a node attends to another. seq_lens: int64 [n], tokens
    before the draft, on the tree's device and on the CPU; every node attends to them.
    """
    from sglang.srt.speculative.eagle_utils import TreeMaskMode, default_tree_mask_mode

    if default_tree_mask_mode() is TreeMaskMode.QLEN_ONLY:
        return tree.reshape(-1)
    return full_mask(tree, seq_lens, seq_lens_cpu)


def full_mask(
    tree: torch.Tensor, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor
) -> torch.Tensor:
    """Returns SGLang's FULL_MASK: one matrix [width, tokens + width] per request.

    The CPU's lengths give the size, so the host does not wait for the device.
    """
    count, width, _ = tree.shape
    device = tree.device
    size = width * (int(seq_lens_cpu.sum()) + width * count)
    mask = torch.ones(size, dtype=torch.bool, device=device)
    columns = seq_lens + width  # of each matrix
    starts = (columns.cumsum(0) - columns) * width
    nodes = torch.arange(width, device=device)
    rows = starts[:, None] + nodes * columns[:, None] + seq_lens[:, None]
    mask[(rows[:, :, None] + nodes).view(-1)] = tree.reshape(-1)
    return mask
