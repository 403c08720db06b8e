"""Closes sessions on an engine, one after the other, while nobody waits for it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from seer_sgl.errors import EngineError

from .session import within


class SessionCloses:
    """The sessions of one engine that are still to be closed.

    close: raises EngineError. If a call takes longer than `timeout_s`, the waiting sessions are
    dropped: SGLang evicts their KV last, but it does evict it.
    """

    def __init__(self, close: Callable[[str], Awaitable[None]], timeout_s: float) -> None:
        self._call = close
        self._timeout_s = timeout_s
        self._waiting: deque[str] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, uid: str) -> None:
        self._waiting.append(uid)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def settle(self) -> None:
        """Waits until all of them are closed. Cancelled, it gives the others up."""
        try:
            if self._task is not None and not self._task.done():
                await self._task
        finally:
            self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            try:
                async with within(self._timeout_s):
                    await self._call(self._waiting.popleft())
            except EngineError:
                continue
            except TimeoutError:
                self._waiting.clear()
