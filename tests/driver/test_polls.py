"""How often the monitor polls the engines, in virtual time."""

import asyncio

from seer_sgl.driver.driver import Driver
from seer_sgl.driver.settings import Settings
from seer_sgl.engine_types import EngineLoad, ServerState
from seer_sgl.sim.clock import run_virtually
from seer_sgl.timing import Timing
from tests.support.drivers import FakeFleet
from tests.support.infos import info

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
    engines, clock = (
        [Polled(f"e{number}") for number in range(count)],
        asyncio.get_running_loop().time,
    )
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
    assert (
        max(sum(start <= moment < start + 1 for moment in whole) for start in range(10, 19)) <= 101
    )
