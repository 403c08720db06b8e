"""The states of a faulty engine that last: its clock while it hangs, its connection while it is
cut. Both end at given times; an outage within an outage prolongs it."""

import asyncio
from collections.abc import Callable


class EngineClock:
    """An engine's own clock. It stands still while the engine hangs. `resumed`: called after."""

    def __init__(self, resumed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._resumed = resumed
        self._frozen_at: float | None = None
        self._until = 0.0
        self._behind_s = 0.0

    @property
    def frozen(self) -> bool:
        """Whether the engine hangs."""
        return self._frozen_at is not None

    def now(self) -> float:
        """Returns the engine's time, seconds."""
        now = self._loop.time() if self._frozen_at is None else self._frozen_at
        return now - self._behind_s

    def loop_time(self, time: float) -> float:
        """Returns the event loop's time at a later time of the engine, if it does not hang."""
        return time + self._behind_s

    def freeze(self, until: float) -> None:
        """Stops the clock until the loop's time `until`."""
        self._until = max(self._until, until)
        if self._frozen_at is None:
            self._frozen_at = self._loop.time()
        self._loop.call_at(until, self._thaw, until)

    def thaw(self) -> None:
        """Ends the hang at once."""
        if self._frozen_at is not None:
            self._behind_s += self._loop.time() - self._frozen_at
            self._frozen_at = None

    def _thaw(self, until: float) -> None:
        if self._frozen_at is not None and until == self._until:
            self.thaw()
            self._resumed()


class Connection:
    """The network between an engine and the driver, or between an engine and the KV pool."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._up = asyncio.Event()
        self._up.set()

    @property
    def up(self) -> bool:
        """Whether messages pass."""
        return self._up.is_set()

    async def restored(self) -> None:
        """Returns when messages pass."""
        await self._up.wait()

    def call_when_up(self, call: Callable[..., None], *arguments: object) -> None:
        """Calls `call` when messages pass, or after the end of this cut."""
        if self.up:
            call(*arguments)
        else:
            self._loop.call_at(self._until, self.call_when_up, call, *arguments)

    def cut(self, until: float) -> None:
        """Lets no message pass until the loop's time `until`."""
        self._until = max(self._until, until)
        self._up.clear()
        self._loop.call_at(until, self._restore, until)

    def restore(self) -> None:
        """Ends the cut at once."""
        self._until = 0.0
        self._up.set()

    def _restore(self, until: float) -> None:
        if until == self._until:
            self._up.set()
