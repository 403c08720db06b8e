"""Waits for conditions, and stops and kills processes."""

import contextlib
import signal
from collections.abc import Callable, Iterator

import psutil

from seer_sgl.config.engines import CPU_START_S
from tests.listening import family
from tests.support import waiting

PATIENCE_S = CPU_START_S  # the supervisor gives a start as long


class Missed(Exception):
    """A fault that did not happen, and why."""


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stops a process and all below it for the block. Raises Missed if they do not stand still."""
    members = family(process)[::-1]  # the lowest first
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


def kill(process: psutil.Process) -> None:
    """Kills a process and all below it, the lowest first."""
    for member in family(process)[::-1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


async def until(done: Callable[[], object], otherwise: str) -> None:
    """Waits until `done`. Raises Missed."""
    try:
        await waiting.until(done, PATIENCE_S)
    except TimeoutError:
        raise Missed(otherwise) from None
