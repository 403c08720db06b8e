"""Draft trees on the target's device, and the walk along the target's draws.

All of it is tensor operations: on a GPU the host only queues them. Their result reaches the host
with the next step, so SGLang's scheduler works while the GPU verifies.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from seer_sgl.draft.tree import Accepted, Layout


class Nodes(NamedTuple):
    """A Layout (draft/tree.py) on the device."""

    tokens: torch.Tensor  # this and the next four: int64 [n, width]
    depths: torch.Tensor
    parents: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor
    mask: torch.Tensor  # bool [n, width, width]


class Walk(NamedTuple):
    """The accepted path of each tree."""

    path: torch.Tensor  # int64 [n, width], nodes, the root first, -1 after the last
    lens: torch.Tensor  # int32 [n], at least 1


def upload(layout: Layout, roots: torch.Tensor) -> Nodes:
    """Returns a layout on the device of the root tokens [n], which it puts in.

    It takes one copy for the links and one for the mask.
    """
    links = _upload(torch.from_numpy(np.stack(layout[:-1])), roots.device)
    tokens, depths, parents, first_child, next_sibling = links
    tokens = torch.where(parents < 0, roots[:, None], tokens)  # padding holds the root's token too
    mask = _upload(torch.from_numpy(layout.mask), roots.device)
    return Nodes(tokens, depths, parents, first_child, next_sibling, mask)


def root_alone(roots: torch.Tensor) -> Nodes:
    """Returns trees without drafts on the device of the root tokens, int64 [n]."""
    tokens = roots[:, None]
    none = torch.full_like(tokens, -1)
    mask = torch.ones((len(roots), 1, 1), dtype=torch.bool, device=roots.device)
    return Nodes(tokens, torch.zeros_like(tokens), none, none, none, mask)


def _upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies without waiting: a copy from memory that is not pinned would block the host."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def walk(nodes: Nodes, draws: torch.Tensor) -> Walk:
    """Sample and match: a path follows, from the root on, the child with the token that was drawn.

    draws: integers [n, width], the token that the target drew after each node. All emitted tokens
    are draws of the target, independent of the drafts. A node is on the path if it and all its
    ancestors have the tokens drawn after their parents.
    """
    width = draws.shape[1]
    if width == 1:
        path = torch.zeros(draws.shape, dtype=torch.int64, device=draws.device)
        return Walk(path, torch.ones(len(draws), dtype=torch.int32, device=draws.device))
    drawn = draws.gather(1, nodes.parents.clamp(min=0))
    matches = ((nodes.tokens == drawn) & (nodes.parents >= 0)) | (nodes.depths == 0)
    taken = ~(nodes.mask & ~matches[:, None, :]).any(-1)
    lens = (nodes.depths + 1).masked_fill_(~taken, 0).amax(1).to(torch.int32)
    # Nodes beside the path go to a column that is cut off.
    columns = nodes.depths.masked_fill(~taken, width)
    path = torch.full((len(draws), width + 1), -1, dtype=torch.int64, device=draws.device)
    path.scatter_(1, columns, torch.arange(width, device=draws.device).expand_as(columns))
    return Walk(path[:, :width], lens)


def outcome_of(walked: Walk) -> Callable[[], Accepted]:
    """Queues a copy of a walk to the host.

    Returns a function that waits for the copy and returns the accepted paths.
    """
    path = walked.path.to(torch.int32).to("cpu", non_blocking=True)
    lens = walked.lens.to("cpu", non_blocking=True)
    copied = torch.get_device_module(walked.path.device).Event()
    copied.record()

    def outcome() -> Accepted:
        copied.synchronize()
        return Accepted(path.numpy(), lens.numpy())

    return outcome
