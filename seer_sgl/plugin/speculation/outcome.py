"""The accepted paths of a verification on their way from the device to the host."""

import torch

from seer_sgl.draft.tree import Accepted

from .walk import Walk


class WalkOutcome:
    """A copy of a walk that has been queued; calling it waits for the copy."""

    def __init__(self, walked: Walk) -> None:
        self._path = walked.path.to(torch.int32).to("cpu", non_blocking=True)
        self._lens = walked.lens.to("cpu", non_blocking=True)
        self._copied = torch.get_device_module(walked.path.device).Event()
        self._copied.record()

    def __call__(self) -> Accepted:
        """Returns the accepted paths."""
        self._copied.synchronize()
        return Accepted(self._path.numpy(), self._lens.numpy())
