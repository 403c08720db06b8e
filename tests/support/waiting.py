"""Waits until something is the case, or lets time pass; a test that waits for ever fails."""

import asyncio
import time
from collections.abc import Callable

from seer_sgl.engine.session import SLICES
from tests.fake_sglang import FakeSGLang

DEADLINE_S = 60.0


async def until(condition: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    """Waits until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def block_until(condition: Callable[[], object]) -> None:
    """Blocks until the condition holds, which another thread changes. Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)


def jump(seconds: float) -> None:
    """Advances the clock of the running event loop: a timer that is due by then is due now.

    A limit of less time has passed too, but only a slice of one of a call to an engine (`outlast`).
    The loop's `jumped_s` is the sum of its jumps: the gate does not count them as waits (`tiers`).
    """
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.jumped_s = getattr(loop, "jumped_s", 0.0) + seconds  # type: ignore[attr-defined]
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


async def outlast(seconds: float) -> None:
    """Lets the time of a limit of a call to an engine pass (`seer_sgl.engine.session.within`)."""
    for _ in range(SLICES):
        jump(seconds / SLICES)
        await asyncio.sleep(0)  # its timer is due
        await asyncio.sleep(0)  # the next one is set


async def polled(fake: FakeSGLang) -> None:
    """Waits until the driver has acted on a load that the engine reported after this call.

    A poll begins after the one before has ended, so that three of them contain a whole one.
    """
    polls = fake.polls
    await until(lambda: fake.polls >= polls + 3)
