"""The number of a weight update: the training step. Pure, but for one small file."""

import re
from pathlib import Path

TAG = re.compile(r"(?:best_)?global_step(\d+)")


class Versions:
    """Counts from the checkpoint's step; every send of changed weights is one more."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._sent: int | None = None

    def next(self, updates: int) -> int:
        """Returns the version to send now. `updates`: the optimizer's steps so far.

        After a resume OpenRLHF sends once more without training: the same weights keep their
        version.
        """
        if self._sent is not None and updates != self._sent:
            self.step += 1
        self._sent = updates
        return self.step


def checkpoint_step(folder: Path) -> int:
    """Returns the step of the newest checkpoint in DeepSpeed's folder; 0 without one."""
    try:
        found = TAG.fullmatch((folder / "latest").read_text().strip())
    except OSError:
        return 0
    return int(found[1]) if found else 0
