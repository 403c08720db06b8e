"""An asyncio event loop in virtual time: it does not sleep, the clock jumps to the next timer.

Hours of a rollout take seconds, and every run is exactly repeatable.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from seer_sgl.errors import SimulationError

T = TypeVar("T")


class _Jump:
    """The loop's selector: a wait of `timeout` seconds advances the clock by as much."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> tuple[()]:
        """Advances the clock; no file is ever ready. Raises SimulationError if no timer is set."""
        if timeout is None:
            raise SimulationError(
                "the simulation stands still: no task is ready and no timer is set"
            )
        self.now += timeout
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without files, sockets or threads. `time()`: virtual seconds from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Jump()

    def time(self) -> float:
        """Returns the virtual seconds since the loop was created."""
        return self._selector.now

    def _process_events(self, event_list: object) -> None:
        """Does nothing: there are no file events."""

    def _write_to_self(self) -> None:
        """Does nothing: the loop never blocks, so Ctrl-C need not wake it."""


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
