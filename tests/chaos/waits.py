"""Waits for conditions, and stops processes for a while."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

import psutil

from .wires import family

POLL_S = 0.01
PATIENCE_S = 240.0  # two starts of an engine on a busy machine


class Missed(Exception):
    """A fault that did not happen, and why."""


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stops a process and all below it for the block. Raises Missed if they do not stand still."""
    members = family(process.pid)
    try:
        for member in members:
            member.send_signal(signal.SIGSTOP)
        yield
        if process.status() != psutil.STATUS_STOPPED:
            raise Missed("it did not stop")
    finally:
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGCONT)


async def until(done: Callable[[], object], otherwise: str) -> None:
    """Waits until `done`. Raises Missed."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not done():  # noqa: ASYNC110 (some conditions have no event)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Missed(otherwise) from None
