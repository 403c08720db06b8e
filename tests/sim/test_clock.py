"""Virtual time: no real waits, the same order as in real time, and a standstill is an error."""

import asyncio

import pytest

from seer_sgl.errors import SimulationError
from seer_sgl.sim.clock import run_virtually


def test_hours_pass_at_once_and_timers_keep_their_order() -> None:
    async def work() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        clock = asyncio.get_running_loop().time

        async def after(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, clock()))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(after("late", 7200.0))
            tasks.create_task(after("early", 3600.0))
            tasks.create_task(after("now", 0.0))
        return seen

    # pytest's timeout fails the test if the time really passes.
    assert run_virtually(work()) == [("now", 0.0), ("early", 3600.0), ("late", 7200.0)]


def test_timeouts_work_in_virtual_time() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000.0):
                await asyncio.sleep(2000.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(work()) == 1000.0


def test_waiting_for_what_never_comes_is_an_error_not_a_hang() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="stands still"):
        run_virtually(work())
