"""The chunks in flight: how long the driver waits for them, and what that costs."""

import asyncio
from types import SimpleNamespace
from typing import Any

from seer_sgl.driver.flights import Flight, Flights
from seer_sgl.errors import EngineError
from seer_sgl.types import Chunk
from tests.helpers import make_group
from tests.support.infos import chunk_on

COUNT = 200


async def test_to_wait_for_chunks_that_land_one_by_one_takes_few_looks_at_each() -> None:
    ends, ended, looks = asyncio.Semaphore(0), asyncio.Queue[Flight](), 0

    async def generate(chunk: Chunk, on_tokens: object) -> None:
        await ends.acquire()
        raise EngineError("it was aborted")

    async def abort(chunk: Chunk) -> None:
        ends.release()

    def wanted(chunk: Chunk) -> bool:
        nonlocal looks
        looks += 1
        return True

    engine: Any = SimpleNamespace(generate=generate, abort=abort, info=None)
    run: Any = None
    flights = Flights({"e0": engine}, lambda: 0.0, lambda _, reply: reply, ended.put_nowait, 60.0)
    async with asyncio.TaskGroup() as tasks:
        for request in make_group(n=COUNT).requests:
            flights.send(tasks, run, chunk_on("e0", request))
        waiting = tasks.create_task(flights.until_landed(wanted, "a test"))
        while flights:
            flights.land(await ended.get())
            await asyncio.sleep(0)
        await waiting
    assert looks < 10 * COUNT
