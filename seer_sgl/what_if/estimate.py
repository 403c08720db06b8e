"""What is logged while orders are simulated."""

import time
from collections.abc import Callable

from .orders import Notice

LONG_S = 30.0  # an answer that takes longer is announced


def progress(simulations: int, say: Notice, clock: Callable[[], float] = time.monotonic) -> Notice:
    """Returns a function that is called before each step, the first of which is one simulation.

    It says each step, and behind the first how long all of them take, if it is long.
    `simulations`: their number; `clock`: seconds.
    """
    steps, began = 0, 0.0

    def notice(step: str) -> None:
        nonlocal steps, began
        if steps == 0:
            began = clock()
        if steps == 1:
            all_s = (clock() - began) * simulations
            if all_s > LONG_S:
                say(f"about {all_s:,.0f} s for {simulations} simulations; --groups N takes less")
        steps += 1
        say(f"simulating: {step}")

    return notice
