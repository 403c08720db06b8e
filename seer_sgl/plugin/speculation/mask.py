"""Who attends to whom in a verification, in the layout the attention backend reads."""

from typing import Any

import torch


def attention_mask(tree: torch.Tensor, seq_lens: torch.Tensor, device: Any) -> torch.Tensor:
    """tree: bool [n, width, width], whether a node sees another; seq_lens: int64 [n] on the CPU,
    tokens before the draft, which every node sees.

    On a CPU the tree alone, flattened (SGLang's QLEN_ONLY); on a GPU for each request a matrix
    [width, tokens + width], flattened one after the other (FULL_MASK).
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
