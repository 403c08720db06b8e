"""Runs the work of a command on an event loop until it ends or a signal stops it."""

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

import uvloop

from .console import INTERRUPTED, complain
from .processes.child import stopping_signals
from .timing import DEFAULT, Timing


def run(work: Coroutine[Any, Any, object], timing: Timing = DEFAULT) -> None:
    """Runs a coroutine on uvloop until it ends or a signal cancels it.

    The first of Ctrl-C, SIGTERM and SIGHUP cancels the work, which cleans up in bounded time. Later
    signals have no effect while the event loop responds. If the work blocks the event loop (for
    example a tokenizer download), a later signal raises KeyboardInterrupt.

    A signal that was ignored from the start stays ignored (`nohup`).
    """
    stopped_at: float | None = None
    noticed = False
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def cancel(task: "asyncio.Task[None]") -> None:
        nonlocal noticed
        noticed = True
        task.cancel()

    def stop(*_: object) -> None:
        nonlocal stopped_at
        if stopped_at is None:
            stopped_at = time.monotonic()
            for loop, task in running:
                loop.call_soon_threadsafe(cancel, task)
        elif running and not noticed and time.monotonic() - stopped_at > timing.unnoticed_s:
            raise KeyboardInterrupt

    async def cancellable() -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        if stopped_at is not None:
            task.cancel()
        await work

    before = {number: signal.signal(number, stop) for number in stopping_signals()}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(cancellable())
        except asyncio.CancelledError:  # for a KeyboardInterrupt click prints its own line
            complain("interrupted")
            sys.exit(INTERRUPTED)
        finally:
            running.clear()
            for number, handler in before.items():
                # At exit Python restores the system's handlers, and a late signal would kill it.
                signal.signal(number, handler if stopped_at is None else signal.SIG_IGN)
