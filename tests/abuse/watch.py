"""Watches the processes of a server: their memory and descriptors, and whether one has ended."""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import psutil

from tests.listening import family
from tests.support.processes import lives

SAMPLE_S = 2.0
PARTS = 4  # of the time
# What a part of the time may need beyond the second one, in its quietest moment.
MORE_MB, MORE_SHARE, MORE_DESCRIPTORS = 30.0, 0.15, 30


class Sample(msgspec.Struct, frozen=True):
    """One reading. Memory in MB (RSS); of the engines, the sum over all their processes."""

    server_mb: float
    server_fds: int
    engines_mb: float
    engines_fds: int


Part = dict[str, tuple[float, float]]  # the lowest and the highest of each reading


class Watch:
    """Watches a server and all processes that it had at the start."""

    def __init__(self, server: psutil.Process) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._others = [process for process in family(server) if process.pid != server.pid]
        self._names = {process.pid: _name(process) for process in self._others}

    async def run(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.samples.append(self._sample())
            await asyncio.sleep(SAMPLE_S)

    def _sample(self) -> Sample:
        running = [process for process in self._others if process.is_running()]
        memory, descriptors = 0.0, 0
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                memory += process.memory_info().rss / 1e6
                descriptors += process.num_fds()
        server = self._server
        return Sample(server.memory_info().rss / 1e6, server.num_fds(), memory, descriptors)

    def ended(self) -> list[str]:
        """Returns the processes that have ended since the start, the server's own included."""
        return [
            self._names.get(process.pid, "the server")
            for process in (self._server, *self._others)
            if not lives(process)
        ]

    def parts(self) -> list[Part]:
        """Returns the readings of equal parts of the time."""
        size = max(1, len(self.samples) // PARTS)
        return [_part(self.samples[at : at + size]) for at in range(0, size * PARTS, size)]

    def problems(self) -> list[str]:
        """Returns what grows: the lowest reading of the last part is above that of the second."""
        parts = self.parts()
        early, late = parts[1], parts[-1]
        found = []
        for name in Sample.__struct_fields__:
            before, after = early[name][0], late[name][0]
            memory = name.endswith("_mb")
            more = before * MORE_SHARE + MORE_MB if memory else MORE_DESCRIPTORS
            if after > before + more:
                found.append(f"{name} grows from {before:.0f} to {after:.0f}")
        return found


def _part(samples: Sequence[Sample]) -> Part:
    def span(name: str) -> tuple[float, float]:
        values = [getattr(sample, name) for sample in samples]
        return round(min(values), 1), round(max(values), 1)

    return {name: span(name) for name in Sample.__struct_fields__}


def _name(process: psutil.Process) -> str:
    """Returns a process's title, or the end of its command line."""
    return " ".join(process.cmdline()).strip()[-60:] or process.name()
