"""How often the monitor polls the engines, and which it ends, in virtual time."""

import asyncio

import pytest
from typing_extensions import override

from seer_sgl.driver.driver import Driver
from seer_sgl.driver.settings import Settings
from seer_sgl.driver.stall import HUNG_AFTER
from seer_sgl.engine_types import EngineLoad, ServerState
from seer_sgl.errors import EngineUnavailable, RolloutError
from seer_sgl.sim.clock import run_virtually
from seer_sgl.timing import Timing
from tests.support.drivers import FakeFleet
from tests.support.infos import info
from tests.support.waiting import until

TIMING = Timing(poll_s=0.5, most_polls_per_s=100.0)


class Polled:
    """An idle engine. `at`: when it was polled, virtual seconds."""

    server = ServerState()

    def __init__(self, engine_id: str) -> None:
        self.info = info(engine_id)
        self.at: list[float] = []

    async def settle(self) -> None:
        return

    async def load(self) -> EngineLoad:
        self.at.append(asyncio.get_running_loop().time())
        return EngineLoad(used_tokens=0, progress=(len(self.at),))


async def polls(count: int, seconds: float) -> list[list[float]]:
    engines = [Polled(f"e{number}") for number in range(count)]
    clock = asyncio.get_running_loop().time
    async with Driver.over(FakeFleet(engines), Settings(timing=TIMING), clock):
        await asyncio.sleep(seconds)
    return [engine.at for engine in engines]


def test_a_small_fleet_is_polled_twice_a_second() -> None:
    assert [len(at) for at in run_virtually(polls(3, 60.4))] == [120, 120, 120]


def test_the_engines_of_a_large_fleet_share_the_polls_per_second_one_after_another() -> None:
    times = run_virtually(polls(500, 60.2))
    assert {len(at) for at in times} <= {11, 12}  # each every 5 s
    whole = sorted(moment for at in times for moment in at if 10 <= moment < 20)
    assert len(whole) == 1000
    in_seconds = [sum(start <= moment < start + 1 for moment in whole) for start in range(10, 19)]
    assert max(in_seconds) <= 101


class Hanging(Polled):
    """An engine that answers no poll. `ended`: when it was to be restarted."""

    def __init__(self, engine_id: str) -> None:
        super().__init__(engine_id)
        self.ended: list[float] = []

    @override
    async def load(self) -> EngineLoad:
        raise EngineUnavailable("no answer")

    def end_server(self, _: str) -> None:
        self.ended.append(asyncio.get_running_loop().time())


class Waiting(Hanging):
    """An engine that answers every poll."""

    load = Polled.load


async def ended(engine: Hanging, updates: int, runs_s: float, paused_s: float) -> list[float]:
    """Returns when an engine that misses all updates was to be restarted."""
    clock = asyncio.get_running_loop().time
    fleet = FakeFleet([engine, Polled("e1")])
    async with Driver.over(fleet, Settings(timing=TIMING), clock) as driver:
        for _ in range(updates):
            await asyncio.sleep(runs_s)
            await driver.pause()
            driver.mark_stale("e0", "it missed a weight update")
            await asyncio.sleep(paused_s)
            driver.resume()
    return engine.ended


@pytest.mark.parametrize("paused_s", [0.0, 60.0])
def test_an_engine_that_hangs_is_ended_although_it_misses_updates_meanwhile(
    paused_s: float,
) -> None:
    hangs_s = HUNG_AFTER * Settings().engines.stall_timeout_s
    first = run_virtually(ended(Hanging("e0"), 20, 60.0, paused_s))[0]
    pauses = hangs_s // 60.0 * paused_s  # in which it cannot show that it works
    assert hangs_s + pauses <= first < hangs_s + pauses + 5.0


@pytest.mark.parametrize(
    ("engine", "runs_s", "paused_s"), [(Waiting("e0"), 60.0, 0.0), (Hanging("e0"), 1.0, 60.0)]
)
def test_neither_a_stale_engine_that_answers_nor_a_paused_one_is_ended(
    engine: Hanging, runs_s: float, paused_s: float
) -> None:
    assert not run_virtually(ended(engine, 20, runs_s, paused_s))


class Deaf(Polled):
    """An engine whose calls end late. `settling`: the wait for its sessions."""

    def __init__(self, engine_id: str) -> None:
        super().__init__(engine_id)
        self.answers = asyncio.Event()
        self.settling: asyncio.Task[None] | None = None

    @override
    async def settle(self) -> None:
        self.settling = asyncio.current_task()
        await asyncio.Event().wait()

    @override
    async def load(self) -> EngineLoad:
        try:
            return await super().load()
        finally:
            await self.answers.wait()


async def test_a_driver_whose_end_is_cut_short_takes_nothing_and_leaves_no_task() -> None:
    engine, opened = Deaf("e0"), list[Driver]()

    async def own() -> None:
        timing = Timing(poll_s=0.001, settle_s=60.0)
        async with Driver.over(FakeFleet([engine]), Settings(timing=timing)) as driver:
            opened.append(driver)
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await until(lambda: engine.at)
    for _ in range(3):  # in the block, while the engines settle, and while the work ends
        owner.cancel()
        await until(lambda: owner.done() or engine.settling)
        await asyncio.sleep(0)
    await asyncio.wait({owner})
    assert owner.cancelled()
    run = opened[0].open_run()
    engine.answers.set()
    async with asyncio.timeout(60.0):
        with pytest.raises(RolloutError, match="the driver was closed"):
            await anext(run)
    with pytest.raises(RolloutError, match="the driver was closed"):
        opened[0].open_run()
    assert engine.settling is not None
    assert engine.settling.cancelled()
