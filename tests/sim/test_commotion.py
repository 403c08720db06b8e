"""What callers and operators do while engines fail: the driver answers, and no sample is harmed.

Pauses, engines that leave and join, aborted requests and a caller that leaves, in the storms of
tests/sim/storm.py.
"""

import asyncio
import random

import pytest
from typing_extensions import override

from bench.faults.faulted import FaultyFleet, faulted_settings
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.run import Run
from seer_sgl.sim.clock import run_virtually
from seer_sgl.sim.simulate import known_lengths, make_groups, stand_still, true_lengths
from seer_sgl.types import FailureKind, Request, Sample
from tests.sim.storm import ExactlyOnce, storm

REQUESTS = 120
ANSWER_S = 500.0  # far more than all timeouts and outages that a command may have to wait for


class Commands:
    """Draws and runs commands until it is cancelled."""

    def __init__(self, driver: Driver, fleet: FaultyFleet, runs: list[Run], seed: int) -> None:
        self._driver = driver
        self._fleet = fleet
        self._runs = runs
        self._draw = random.Random(f"commands {seed}")
        self.aborted: set[str] = set()  # uids
        self.done = 0

    async def run(self) -> None:
        commands = [self.pause, self.replace_engine, self.abort_request, self.leave]
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._draw.expovariate(1 / 8))
                tasks.create_task(self._draw.choice(commands)())

    async def pause(self) -> None:
        async with asyncio.timeout(ANSWER_S):
            await self._driver.pause()
        await asyncio.sleep(self._draw.uniform(0, 5))
        self._driver.resume()
        self.done += 1

    async def replace_engine(self) -> None:
        staying = [state.engine_id for state in self._driver.states() if not state.leaving]
        self._driver.add_engine(self._fleet.start_engine())
        async with asyncio.timeout(ANSWER_S):
            await self._driver.remove_engine(self._draw.choice(staying))
        self.done += 1

    async def abort_request(self) -> None:
        run = self._draw.choice(self._runs)
        requests = [r for group in run.unfinished.values() for r in group.requests]
        if requests:
            request = self._draw.choice(requests)
            self.aborted.add(request.uid)
            run.abort(request)
            self.done += 1

    async def leave(self) -> None:
        """The last run is closed."""
        if self._draw.random() < 0.1:
            self._runs[-1].close()


class Checked(ExactlyOnce):
    """As in a storm; an aborted request may end early."""

    commands: Commands

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if request.uid not in self.commands.aborted or sample.finish_reason != "abort":
            super().finished(request, sample)
            return
        place = sample.group_id, sample.index
        assert len(sample.response_ids) == len(sample.rollout_log_probs) < self._lengths[place]
        self.finishes[place] += 1


async def _commotion(seed: int) -> int:
    case, loop = storm(seed, REQUESTS), asyncio.get_running_loop()
    config, responses = case.config, case.responses
    longest = config.workload.lengths.max
    groups = make_groups(responses, longest)
    fleet = FaultyFleet(config, true_lengths(groups, responses), case.faults)
    settings = faulted_settings(config, case.faults, known_lengths(config, responses, None))
    async with Driver.over(fleet, settings, loop.time) as driver:
        checks = [Checked(responses[i::3], longest) for i in range(3)]
        runs = [driver.submit(groups[i::3], [checks[i]]) for i in range(3)]
        commands = Commands(driver, fleet, runs, seed)
        for check in checks:
            check.commands = commands
        async with asyncio.TaskGroup() as tasks:
            beside = [fleet.live(), stand_still(driver), commands.run()]
            running = [tasks.create_task(work) for work in beside]
            for run in runs:
                async for _ in run:
                    pass
            for task in running:
                task.cancel()
        for check in checks[:2]:
            check.check()
        assert {failure.kind for failure in checks[2].failures} <= {FailureKind.LEFT}
        assert checks[2].finishes.total() == len(checks[2].finishes)
        await asyncio.sleep(20.0)
        assert driver.check() == []
    return commands.done


@pytest.mark.parametrize("seed", range(12))
def test_commands_are_obeyed_while_engines_fail(seed: int) -> None:
    assert run_virtually(_commotion(seed)) > 0
