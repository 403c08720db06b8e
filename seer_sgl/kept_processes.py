"""Child processes that are restarted when they die."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from .processes import OwnedProcess

logger = logging.getLogger(__name__)
WATCH_S = 0.5


class KeptProcess:
    """A child process that can be restarted. `name`: for logs and error messages."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self._process: OwnedProcess | None = None

    async def start(self) -> None:
        """Starts the process, first or after `stop`; replaces its log."""
        self._process = await OwnedProcess.start(self._command, self.log, self._environment)

    @property
    def ended(self) -> bool:
        """Whether the process was started and has ended."""
        return self._process is not None and self._process.exit_status is not None

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit status."""
        assert self._process is not None
        return await self._process.wait()

    def exit_reason(self) -> str | None:
        """Returns how the process ended and the path of its log; None while it runs."""
        return None if self._process is None else self._process.exit_reason()

    def log_tail(self) -> str:
        """Returns the last lines of the log, for an error message."""
        return "" if self._process is None else self._process.log_tail()

    def last_line(self) -> str:
        """Returns the last line of the log."""
        return "" if self._process is None else self._process.last_line()

    async def stop(self) -> None:
        """Ends the process and its child processes."""
        if self._process is not None:
            await self._process.stop()


@contextlib.asynccontextmanager
async def kept_alive(processes: Sequence[KeptProcess]) -> AsyncIterator[None]:
    """Restarts processes that die during the block; their memory is lost.

    The caller starts the processes before, and stops them afterwards.
    """

    async def keep() -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for process in processes:
                if process.ended:
                    reason = process.exit_reason()
                    logger.warning("%s is being restarted: %s", process.name, reason)
                    await process.stop()
                    await process.start()

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
