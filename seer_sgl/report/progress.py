"""Live progress: a panel in a terminal, plain lines elsewhere."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import (
    Chunk,
    ChunkResult,
    EngineInfo,
    EngineLoad,
    Failure,
    Group,
    Request,
    Sample,
)

REFRESH_S = 0.5
PLAIN_LINE_S = 5.0
MAX_ENGINES_SHOWN = 8
RATE_WINDOW_S = 10.0  # tok/s is the mean over this much of the past


class Progress(Observer):
    """Counts the events of a rollout and shows them. `groups` and `requests`: total numbers."""

    def __init__(self, engines: Iterable[EngineInfo], groups: int, requests: int) -> None:
        self._infos = {info.engine_id: info for info in engines}
        self._groups, self._requests = groups, requests
        self._groups_done = 0
        self._requests_done = 0
        self._tokens = 0
        self._inflight = dict.fromkeys(self._infos, 0)
        self._used = dict.fromkeys(self._infos, 0)
        self._chunks = dict.fromkeys(self._infos, 0)
        self._recent: deque[tuple[float, int]] = deque()
        self._began = time.monotonic()
        self._tail_since: float | None = None

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self._inflight[chunk.engine_id] += 1

    @override
    def lost(self, result: ChunkResult) -> None:
        self._inflight[result.chunk.engine_id] -= 1

    @override
    def grown(self, result: ChunkResult) -> None:
        engine_id = result.chunk.engine_id
        self._inflight[engine_id] -= 1
        self._chunks[engine_id] += 1
        if result.reply is not None:
            self._tokens += len(result.reply.ids)
            self._recent.append((time.monotonic(), len(result.reply.ids)))

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self._groups_done += failure is None

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self._requests_done += 1
        if self._tail_since is None and self._requests_done >= 0.9 * self._requests:
            self._tail_since = time.monotonic()

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        self._used[engine_id] = load.used_tokens

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        self._infos[info.engine_id] = info
        for counts in (self._inflight, self._used, self._chunks):
            counts[info.engine_id] = 0

    @contextlib.asynccontextmanager
    async def shown(self, console: Console) -> AsyncIterator[None]:
        """Shows the progress while the block runs, and once more at its end."""
        if not console.is_terminal:
            async with _repeating(PLAIN_LINE_S, lambda: self._print_line(console)):
                yield
            self._print_line(console)
            return
        with Live(self.table(), console=console, refresh_per_second=4) as live:
            async with _repeating(REFRESH_S, lambda: live.update(self.table())):
                yield
            live.update(self.table())

    def _print_line(self, console: Console) -> None:
        console.print(self.line(), soft_wrap=True, markup=False)

    def line(self) -> str:
        """Returns the progress as one plain line."""
        engines = "  ".join(
            f"{engine_id} {self._inflight[engine_id]} running, KV {self._kv(engine_id):.0%}"
            for engine_id in self._shown()
        )
        if hidden := len(self._infos) - len(self._shown()):
            engines += f"  and {hidden} more, {sum(self._inflight.values())} running in all"
        return (
            f"{time.monotonic() - self._began:6.1f} s  "
            f"groups {self._groups_done}/{self._groups}  "
            f"requests {self._requests_done}/{self._requests}  "
            f"{self._rate():.0f} tok/s  {self._tail()}  {engines}"
        )

    def table(self) -> Table:
        """Returns the progress as a panel for a terminal."""
        table = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._requests, completed=self._requests_done, width=40)
        table.add_row("requests", bar, f"{self._requests_done}/{self._requests}", self._tail())
        table.add_row(
            "groups",
            f"{self._groups_done}/{self._groups}",
            f"{self._rate():.0f} tok/s",
            f"{self._tokens} tokens in {time.monotonic() - self._began:.0f} s",
        )
        for engine_id in self._shown():
            kv = self._kv(engine_id)
            table.add_row(
                engine_id,
                ProgressBar(total=1.0, completed=min(kv, 1.0), width=40),
                f"KV {kv:.0%}",
                f"{self._inflight[engine_id]} running, {self._chunks[engine_id]} chunks done",
            )
        if hidden := len(self._infos) - len(self._shown()):
            table.add_row("", f"and {hidden} more engines")
        return table

    def _shown(self) -> list[str]:
        """Returns the engines to show, MAX_ENGINES_SHOWN at most."""
        return list(self._infos)[:MAX_ENGINES_SHOWN]

    def _kv(self, engine_id: str) -> float:
        return self._used[engine_id] / self._infos[engine_id].max_total_num_tokens

    def _rate(self) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()
        return sum(tokens for _, tokens in self._recent) / min(RATE_WINDOW_S, now - self._began)

    def _tail(self) -> str:
        if self._tail_since is None:
            return "tail not reached"
        return f"tail {time.monotonic() - self._tail_since:.1f} s"


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
