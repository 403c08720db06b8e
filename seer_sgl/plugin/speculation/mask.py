"""The attention mask of a verification, in the layout that the attention backend reads."""

from typing import Any

import torch


def attention_mask(tree: torch.Tensor, seq_lens: torch.Tensor, device: Any) -> torch.Tensor:
    """Returns the flattened mask of `n` trees.

    tree: bool [n, width, width], true where a node attends to another. seq_lens: int64 [n] on the
    CPU, tokens before the draft; every node attends to them. On a CPU the mask is the tree alone
    (SGLang's QLEN_ONLY). On a GPU it is one matrix [width, tokens + width] per request (FULL_MASK).
    """
    if torch.device(device).type == "cpu":
        return tree.reshape(-1)
    width = tree.shape[1]
    rows = seq_lens + width  # of the matrix: entries of a row
    starts = torch.cumsum(rows, 0) - rows
    mask = torch.ones(int(rows.sum()) * width, dtype=torch.bool, device=device)
    first = (starts * width)[:, None] + torch.arange(width) * rows[:, None] + seq_lens[:, None]
    where = (first[:, :, None] + torch.arange(width)).to(device, non_blocking=True)
    mask[where.view(-1)] = tree.reshape(-1)
    return mask
