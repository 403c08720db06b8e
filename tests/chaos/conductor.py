"""Starts the faults of a plan when they are due, and records the outcome of each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import ChunkResult

from .plan import Fault
from .strikes import Strikes
from .waits import Missed

Tell = Callable[[str], None]


class Happened(msgspec.Struct):
    """The outcome of a fault. `evidence`: what shows it; `problem`: why it did not happen."""

    fault: Fault
    evidence: str = ""
    problem: str | None = "it was not carried out to its end"


class Conductor(Observer):
    """Starts each fault when the rollout has its share of `tokens`. `tell` receives a line."""

    def __init__(self, plan: Sequence[Fault], tokens: int, strikes: Strikes, tell: Tell) -> None:
        self.happened = [Happened(fault) for fault in plan]
        self._waiting = sorted(self.happened, key=lambda entry: -entry.fault.at)
        self._tokens = tokens
        self._strikes = strikes
        self._tell = tell
        self._returned = 0
        self.tasks: list[asyncio.Task[None]] = []

    @override
    def grown(self, result: ChunkResult) -> None:
        assert result.reply is not None
        self._returned += len(result.reply.ids)
        while self._waiting and self._returned >= self._waiting[-1].fault.at * self._tokens:
            self.tasks.append(asyncio.create_task(self._carry_out(self._waiting.pop())))

    async def _carry_out(self, entry: Happened) -> None:
        fault = entry.fault
        self._tell(f"begins {fault}")
        try:
            entry.evidence = await self._strikes.carry_out(fault)
            entry.problem = None
            self._tell(f"ended  {fault}: {entry.evidence}")
        except Missed as missed:
            entry.problem = str(missed)
            self._tell(f"MISSED {fault}: {missed}")


@contextlib.asynccontextmanager
async def conducted(
    plan: Sequence[Fault], tokens: int, strikes: Strikes, tell: Tell
) -> AsyncIterator[Conductor]:
    """Yields an observer that carries the plan out; then waits for what was begun.

    Engines may still be starting when the rollout is over.
    """
    conductor = Conductor(plan, tokens, strikes, tell)
    try:
        yield conductor
        await asyncio.gather(*conductor.tasks)
    finally:
        for task in conductor.tasks:
            task.cancel()
        await asyncio.gather(*conductor.tasks, return_exceptions=True)
