"""What is logged while orders are simulated."""

import time
from collections.abc import Callable

from .orders import Notice

LONG_S = 30.0  # an answer that takes longer is announced


class Progress:
    """Says each step, and behind the first simulation how long all of them take, if it is long.

    `simulations`: their number; `clock`: seconds.
    """

    def __init__(
        self, simulations: int, say: Notice, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._simulations = simulations
        self._say = say
        self._clock = clock
        self._steps = 0
        self._began = 0.0

    def __call__(self, step: str) -> None:
        """Is called before each step; the first one is a single simulation."""
        if self._steps == 0:
            self._began = self._clock()
        if self._steps == 1:
            all_s = (self._clock() - self._began) * self._simulations
            if all_s > LONG_S:
                self._say(
                    f"about {all_s:,.0f} s for {self._simulations} simulations; --groups N takes "
                    "less"
                )
        self._steps += 1
        self._say(f"simulating: {step}")
