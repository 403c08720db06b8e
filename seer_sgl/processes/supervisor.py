"""Child processes that are restarted when they die."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from seer_sgl.errors import ConfigError
from seer_sgl.timing import DEFAULT, Timing

from .child import OwnedProcess
from .restarts import Incidents, Restarts

logger = logging.getLogger(__name__)


class Supervised(Protocol):
    """A process that can be restarted, on this machine or on another one.

    `name`: for logs and error messages.
    """

    name: str

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended."""

    def exit_reason(self) -> str | None:
        """Returns how it ended and the path of its log; None while it runs."""

    async def start(self) -> None:
        """Starts it, first or after `stop`. Raises ConfigError or OSError if it cannot start."""

    async def stop(self) -> None:
        """Ends it and its child processes."""


class SupervisedProcess(Supervised):
    """A child process that can be restarted."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self._process: OwnedProcess | None = None

    @override
    async def start(self) -> None:
        self._process = await OwnedProcess.start(self._command, self.log, self._environment)

    @property
    @override
    def ended(self) -> bool:
        return self._process is not None and self._process.exit_status is not None

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit status."""
        assert self._process is not None
        return await self._process.wait()

    @override
    def exit_reason(self) -> str | None:
        return None if self._process is None else self._process.exit_reason()

    def log_tail(self) -> str:
        """Returns the last lines of the log, for an error message."""
        return "" if self._process is None else self._process.log_tail()

    def last_line(self) -> str:
        """Returns the last line of the log."""
        return "" if self._process is None else self._process.last_line()

    @override
    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()


@contextlib.asynccontextmanager
async def supervised(
    processes: Sequence[Supervised],
    all_restarts: list[Restarts] | None = None,
    timing: Timing = DEFAULT,
) -> AsyncIterator[None]:
    """Restarts processes that die during the block (restarts.py); their memory is lost.

    The caller starts the processes before, and stops them afterwards. `all_restarts` receives the
    restarts of each, to be read only.
    """
    incidents = Incidents()
    most_s = timing.restart_most_s
    kept = [(process, Restarts(process.name, incidents, most_s)) for process in processes]
    if all_restarts is not None:
        all_restarts += [restarts for _, restarts in kept]

    async def keep() -> None:
        while True:
            await asyncio.sleep(timing.watch_s)
            for process, restarts in kept:
                if process.ended:
                    await _restart(process, restarts)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _restart(process: Supervised, restarts: Restarts) -> None:
    """Starts a process that has ended, once that is due."""
    if restarts.quarantine is not None:
        return
    reason, now = process.exit_reason(), asyncio.get_running_loop().time()
    if not restarts.down:
        restarts.ended(str(reason), now)
    if restarts.due(now):
        logger.warning("%s is being restarted: %s", process.name, reason)
        try:
            await process.stop()
            await process.start()
        except (ConfigError, OSError) as error:  # no descriptor, no room for its log
            restarts.ended(str(error), now, ready=False)
        else:
            restarts.started(now)
    elif restarts.quarantine is not None:
        logger.error("%s is not restarted: %s", process.name, restarts.quarantine)
