"""Live progress: a panel in a terminal, plain lines elsewhere.

Both show what each technique does: the accept length (drafts), what moved between engines (the
KV pool) and the tail (scheduling). They fit into 80 to 100 columns.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from typing_extensions import override

from seer_sgl.engine_types import EngineInfo
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Failure, FailureKind, Group, Request, RequestState, Sample

from .counts import RATE_WINDOW_S, EngineCounts, FleetCounts
from .report import before_tail

MAX_ENGINES_SHOWN = 8
ENGINES_PER_LINE = 2
BAR_WIDTH = 26
INDENT = " " * 10  # of the engines, below the time


class ShownProgress(FleetCounts):
    """Counts the events of a rollout and shows them. `groups`, `requests`: total numbers."""

    def __init__(
        self,
        engines: Iterable[EngineInfo],
        groups: int,
        requests: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engines, clock)
        self.groups, self.requests = groups, requests
        self.groups_done = 0
        self.requests_done = 0
        self._given_up = 0  # unfinished requests of groups that were given up
        self._tail_since: float | None = None

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self.groups_done += failure is None
        if failure is not None and failure.kind is not FailureKind.LEFT:
            unfinished = (r.state is not RequestState.FINISHED for r in group.requests)
            self._given_up += sum(unfinished)
            self._look_for_tail()

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self.requests_done += 1
        self._look_for_tail()

    @contextlib.asynccontextmanager
    async def shown(self, console: Console, timing: Timing = DEFAULT) -> AsyncIterator[None]:
        """Shows the progress while the block runs, and once more at its end."""
        if not console.is_terminal:
            async with _repeating(timing.progress_line_s, lambda: _print(console, self.lines())):
                yield
            _print(console, self.lines(ended=True))
            return
        with Live(self.table(), console=console, refresh_per_second=4) as live:
            async with _repeating(timing.progress_s, lambda: live.update(self.table())):
                yield
            live.update(self.table(ended=True))

    def lines(self, ended: bool = False) -> Iterator[str]:
        """Yields the progress as plain lines. `ended`: without what the engines do now."""
        facts = [
            f"{self.elapsed_s:6.1f} s",
            f"groups {self.groups_done}/{self.groups}",
            f"requests {self.requests_done}/{self.requests}",
            f"{_or_dash(self.rate(), '.0f')} tok/s",
        ]
        if self.drafts:
            facts.append(f"accept {_or_dash(self.totals.accept_length)}")
        if self.pooled:
            facts.append(f"moved {self.totals.migrations}, {decimal(self.totals.moved_bytes)}")
        yield "  ".join([*facts, f"tail {self._tail('-')}"])
        if ended:
            return
        engines = [f"{name} {_doing(engine)}" for name, engine in self._shown()]
        if self._hidden():
            running = sum(engine.load.running for engine in self.engines.values())
            engines.append(f"and {self._hidden()} more, {running} running in all")
        for first in range(0, len(engines), ENGINES_PER_LINE):
            yield INDENT + "   ".join(engines[first : first + ENGINES_PER_LINE])

    def table(self, ended: bool = False) -> Table:
        """Returns the progress as a panel. `ended`: without what the engines do now."""
        table = Table.grid(padding=(0, 2))
        table.add_row(
            "requests",
            ProgressBar(total=self.requests, completed=self.requests_done, width=BAR_WIDTH),
            f"{self.requests_done}/{self.requests}, groups {self.groups_done}/{self.groups}, "
            f"{self.elapsed_s:.0f} s",
        )
        rate = f"{_or_dash(self.rate(), ',.0f')} tok/s over {RATE_WINDOW_S:g} s"
        table.add_row("speed", rate, f"{self.totals.tokens:,} tokens returned")
        if self.drafts:
            length = f"accept length {_or_dash(self.totals.accept_length)}"
            table.add_row("drafts", length, "tokens per verification")
        if self.pooled:
            moved = f"{decimal(self.totals.moved_bytes)} of KV read from the pool"
            table.add_row("moved", f"{self.totals.migrations} migrations", moved)
        table.add_row("tail", self._tail("not reached"), "the last 10 % of the requests")
        for name, engine in self._shown():
            share = engine.kv_peak if ended else engine.kv_share
            bar = ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_WIDTH)
            table.add_row(name, bar, _done(engine) if ended else _doing(engine))
        if self._hidden():
            table.add_row("", f"and {self._hidden()} more engines")
        return table

    def _shown(self) -> list[tuple[str, EngineCounts]]:
        """Returns the engines to show, MAX_ENGINES_SHOWN at most."""
        return list(self.engines.items())[:MAX_ENGINES_SHOWN]

    def _hidden(self) -> int:
        return len(self.engines) - len(self._shown())

    def _look_for_tail(self) -> None:
        needed = before_tail(self.requests - self._given_up)
        if self._tail_since is None and self.requests_done >= needed:
            self._tail_since = self._clock()

    def _tail(self, otherwise: str) -> str:
        """Returns the time since only the last 10 % of the requests are unfinished."""
        since = self._tail_since
        return otherwise if since is None else f"{self._clock() - since:.1f} s"


def _doing(engine: EngineCounts) -> str:
    load = engine.load
    waiting = f"{load.kv_waiting} wait for KV, " if load.kv_waiting else ""
    return f"{load.running} running, {load.queued} queued, {waiting}KV {engine.kv_share:.0%}"


def _done(engine: EngineCounts) -> str:
    return f"{engine.totals.chunks} chunks, KV at most {engine.kv_peak:.0%}"


def _or_dash(number: float | None, form: str = ".2f") -> str:
    return "-" if number is None else format(number, form)


def _print(console: Console, lines: Iterator[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


@contextlib.asynccontextmanager
async def _repeating(period_s: float, act: Callable[[], object]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await asyncio.sleep(period_s)
            act()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
