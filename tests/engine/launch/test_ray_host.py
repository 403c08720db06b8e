"""What an actor returns of the process that it runs, with Ray and the process replaced."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.engine.launch import ray_host
from seer_sgl.engine.launch.ray_host import Output, ProcessHost
from seer_sgl.processes import child


class Process:
    """A process that has logged a line. `waits`: for its end, so far."""

    exit_status: int | None = None
    pid = 1

    def __init__(self, log: Path) -> None:
        self.log = log
        self.waits = 0
        self._ended = asyncio.Event()
        log.write_bytes(b"loading\n")

    def end(self, status: int) -> None:
        self.exit_status = status
        self._ended.set()

    async def wait(self) -> int:
        self.waits += 1
        await self._ended.wait()
        assert self.exit_status is not None
        return self.exit_status


async def test_calls_that_end_before_the_process_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(child, "_held", None)
    monkeypatch.setattr(ray_host, "FOLLOW_S", 0.001)
    host, process = ProcessHost(), Process(tmp_path / "log")
    started: Any = process
    host._process = started
    host._hosted("127.0.0.1", 1)
    for _ in range(5):
        assert await host.follow(0) == Output(b"loading\n", None)
    assert process.waits == 1
    process.end(3)
    assert await host.follow(4) == Output(b"ing\n", 3)
    assert host._log is not None
    host._log.close()
