"""An asyncio event loop in virtual time: nobody waits, the clock jumps to the next timer.

Hours of a rollout pass in seconds, and every run is exactly repeatable.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from seer_sgl.errors import SimulationError

T = TypeVar("T")


class _Jump:
    """Stands where a loop has its selector: to wait for `timeout` seconds is to let them pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> tuple[()]:
        """No file will ever be ready; time passes."""
        if timeout is None:
            raise SimulationError("the simulation stands still: nothing is due and nothing is done")
        self.now += timeout
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without files, sockets or threads. `time()`: virtual seconds from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._selector.now

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing blocks, so there is nothing to wake (Ctrl-C calls this)."""


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
