"""Waits until something is the case; a test that waits for ever fails."""

import asyncio
from collections.abc import Callable

DEADLINE_S = 60.0


async def until(condition: Callable[[], object], within_s: float = DEADLINE_S) -> None:
    """Waits until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
