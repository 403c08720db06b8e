"""`python -m tests.e2e.killed_driver SIZE OPTION...` is `seer-sgl rollout OPTION...`, which kills
itself as soon as its journal has SIZE bytes. So it cannot end before, however busy the machine is.
"""

import os
import signal
import sys

from seer_sgl.cli import main
from seer_sgl.driver.journal.writer import BlockWriter


def kill_at(size: int, file: int) -> None:
    """Kills this process behind the block that reaches the size. What it has written stays, also
    without a sync."""
    if os.fstat(file).st_size >= size:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _, limit, *options = sys.argv
    setattr(BlockWriter, "sync", staticmethod(lambda file: kill_at(int(limit), file)))  # noqa: B010
    sys.argv = ["seer-sgl", "rollout", *options]
    main()
