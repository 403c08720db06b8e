"""Child processes that are restarted when they die."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from seer_sgl.errors import SeerError, first_line
from seer_sgl.timing import DEFAULT, Timing

from .child import OwnedProcess, log_tail
from .restarts import Incidents, Restarts

logger = logging.getLogger(__name__)
POLL_S = 0.05  # between two looks whether a process is ready


class Supervised(Protocol):
    """A process that can be restarted, on this machine or on another one.

    `name`: for logs and error messages. `log`: the file with its output, once it was started.
    """

    name: str
    log: Path

    def exit_reason(self) -> str | None:
        """Returns how it ended and the path of its log; None before its start and while it runs."""

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

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit status."""
        assert self._process is not None
        return await self._process.wait()

    @override
    def exit_reason(self) -> str | None:
        return None if self._process is None else self._process.exit_reason()

    @override
    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()


async def until_ready(
    process: Supervised,
    ready: Callable[[], Awaitable[bool]],
    within_s: float,
    failure: type[SeerError],
) -> None:
    """Waits until a process that was started is ready.

    Raises `failure` with the end of its log if it ends before, or takes longer than `within_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not await ready():
        why = process.exit_reason()
        if why is not None or loop.time() > deadline:
            why = why or f"not ready after {within_s:g} s"
            raise failure(f"{process.name}: {why}; the end of its log:\n{log_tail(process.log)}")
        await asyncio.sleep(POLL_S)


async def has_logged(process: Supervised, line: str) -> bool:
    """Returns whether a process that was started has logged a line."""
    return line in process.log.read_text(errors="replace")


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
                now = asyncio.get_running_loop().time()
                if is_due(restarts, process.exit_reason(), now):
                    await _restart(process, restarts, now)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _restart(process: Supervised, restarts: Restarts, now: float) -> None:
    logger.warning("%s is being restarted: %s", process.name, restarts.reason)
    try:
        await process.stop()
        await process.start()
    except Exception as error:  # such as no descriptor; the others are watched all the same
        restarts.ended(first_line(error), now, ready=False)
    else:
        restarts.started(now)


def is_due(restarts: Restarts, exit_reason: str | None, now: float) -> bool:
    """Records the end of a process, if it has ended. Returns whether it is to be started now."""
    if exit_reason is not None and not restarts.down:
        restarts.ended(exit_reason, now)
    before, due = restarts.quarantine, restarts.due(now)
    if restarts.quarantine != before:
        logger.error("%s is not restarted: %s", restarts.name, restarts.quarantine)
    return due
