"""The reasons why nothing is dispatched: a pause, a weight update, memory that was released."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from seer_sgl.driver.driver import Driver

logger = logging.getLogger(__name__)
REMIND_S = 60.0  # the first reminder of a hold; each later one comes after twice the time


class Holds:
    """The holds by name; the driver is paused once per hold.

    A client that dies inside a hold leaves it: the log and `/server_info` name it.
    """

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._since: dict[str, float] = {}
        self.number = 0  # of times that nothing was held, and then something
        self._reminders: dict[str, asyncio.TimerHandle] = {}
        self._over = asyncio.Event()
        self._over.set()

    def __contains__(self, name: str) -> bool:
        return name in self._since

    def __bool__(self) -> bool:
        return bool(self._since)

    def section(self) -> list[dict[str, Any]]:
        """Returns the holds for `/server_info`."""
        now = self._clock()
        return [
            {"reason": name, "seconds": round(now - since, 1)}
            for name, since in self._since.items()
        ]

    async def begin(self, name: str) -> None:
        """Begins a hold unless it is there; returns when no chunk is in flight.

        Passthrough requests run on. Raises RolloutError if the driver ends meanwhile.
        """
        if name in self._since:
            return
        self.number += not self._since
        self._since[name] = self._clock()
        self._over.clear()
        self._remind_in(name, REMIND_S)
        try:
            await self._driver.pause()
        except BaseException:
            self.end(name)
            raise

    def end(self, name: str) -> None:
        """Ends a hold if it is there."""
        if self._since.pop(name, None) is not None:
            self._reminders.pop(name).cancel()
            self._driver.resume()
            if not self._since:
                self._over.set()

    async def over(self) -> None:
        """Returns when nothing is held: for requests that the driver does not place."""
        await self._over.wait()

    @contextlib.asynccontextmanager
    async def during(self, name: str) -> AsyncIterator[None]:
        """Holds dispatch for the length of a block; within a hold of that name it does nothing."""
        inner = name in self._since
        try:
            await self.begin(name)
            yield
        finally:
            if not inner:
                self.end(name)

    def close(self) -> None:
        """Stops the reminders, at the end of the backend."""
        for reminder in self._reminders.values():
            reminder.cancel()

    def _remind_in(self, name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._reminders[name] = loop.call_later(seconds, self._remind, name, seconds)

    def _remind(self, name: str, seconds: float) -> None:
        held_s = self._clock() - self._since[name]
        logger.warning("no request was dispatched for %.0f s: %s is still open", held_s, name)
        self._remind_in(name, 2 * seconds)
