"""The chunks in flight: how long the driver waits for them, and what that costs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

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


async def test_the_chunks_on_an_engine_are_found_without_a_look_at_those_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, ends = asyncio.Queue[Flight](), asyncio.Event()

    async def generate(chunk: Chunk, on_tokens: object) -> None:
        await ends.wait()
        raise EngineError("it failed")

    engine: Any = SimpleNamespace(generate=generate, info=None)
    engines = {"e0": engine, "e1": engine}
    flights = Flights(engines, lambda: 0.0, lambda _, reply: reply, ended.put_nowait, 60.0)
    monkeypatch.setattr(Flights, "__iter__", None)
    requests = make_group(n=5).requests
    run: Any = None
    async with asyncio.TaskGroup() as tasks:
        for number, request in enumerate(requests):
            flights.send(tasks, run, chunk_on(f"e{number % 2}", request))
        on = {name: [flight.chunk.request for flight in flights.on(name)] for name in ("e0", "e1")}
        assert on == {"e0": requests[::2], "e1": requests[1::2]}
        assert not list(flights.on("e2"))
        ends.set()
        for _ in requests:
            flights.land(await ended.get())
    assert not list(flights.on("e0"))
