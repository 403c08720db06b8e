"""What tests share that kill real engines in a rollout."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import psutil
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Chunk, Prompt
from tests.e2e.compare import Samples, by_key
from tests.processes import command_of

WAIT_S = 300.0  # a start on a busy machine takes minutes
runs = itertools.count()


async def until(done: Callable[[], bool]) -> None:
    """Waits until a condition holds; it may block."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await asyncio.to_thread(done):
                return
            await asyncio.sleep(0.5)


async def roll(
    rollout: Rollout, prompts: list[Prompt], *observers: Observer, limit: int = 600
) -> tuple[Samples, dict[str, Any]]:
    """Returns the samples, which have the same seeds in every run, and the report."""
    name, began = f"run{next(runs)}", time.monotonic()
    maker = GroupMaker(name, 7)
    groups = [maker.group(prompt, rollout.config.sampling, limit, began) for prompt in prompts]
    record = Recorder(name, 7, rollout.engines, groups, began)
    run = rollout.driver.submit(groups, [record, *observers], rollout_id=name, started_at=began)
    ended = [group async for group in run]
    assert all(group.failure is None for group in ended)
    return by_key([sample for group in ended for sample in group.samples]), report(record)


def pids_of(engine: HttpEngine) -> list[int]:
    """Returns the processes of an engine's server, the main one first, the scheduler last."""
    port = engine.info.url.rpartition(":")[2]
    for process in psutil.Process().children():
        line = command_of(process)
        if "--port" in line and line[line.index("--port") + 1] == port:
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
    raise AssertionError(f"no process of {engine.info.engine_id}")


class Strike(Observer):
    """Calls `deed` once, a while after the fourth chunk went to an engine."""

    def __init__(self, engine_id: str, deed: Callable[[], None], *, delay_s: float = 0.3) -> None:
        self._engine_id = engine_id
        self._deed = deed
        self._left = 4
        self._delay_s = delay_s
        self.struck = False

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        if chunk.engine_id == self._engine_id:
            self._left -= 1
            if self._left == 0:
                self.struck = True
                asyncio.get_running_loop().call_later(self._delay_s, self._deed)
