"""Child processes that are started again when they die."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from .processes import OwnedProcess

logger = logging.getLogger(__name__)
WATCH_S = 0.5


class KeptProcess:
    """A child process that can be started again as it was. `name`: for logs and error messages."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self._process: OwnedProcess | None = None

    async def start(self) -> None:
        """Start it, for the first time or once it has been stopped; its log begins anew."""
        self._process = await OwnedProcess.start(self._command, self.log, self._environment)

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""
        return self._process is not None and self._process.exit_status is not None

    async def wait(self) -> int:
        """Wait for the end of the process; its exit status."""
        assert self._process is not None
        return await self._process.wait()

    def exit_reason(self) -> str | None:
        """How the process ended and where its log is; None while it runs."""
        return None if self._process is None else self._process.exit_reason()

    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""
        return "" if self._process is None else self._process.log_tail()

    def last_line(self) -> str:
        """The last line of the log."""
        return "" if self._process is None else self._process.last_line()

    async def stop(self) -> None:
        """End the process and everything it started."""
        if self._process is not None:
            await self._process.stop()


@contextlib.asynccontextmanager
async def kept_alive(processes: Sequence[KeptProcess]) -> AsyncIterator[None]:
    """Start again what dies during the block. What a process held is lost with it.

    Neither the first start nor the last stop happens here.
    """

    async def keep() -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for process in processes:
                if process.ended:
                    reason = process.exit_reason()
                    logger.warning("%s is started again: %s", process.name, reason)
                    await process.stop()
                    await process.start()

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
