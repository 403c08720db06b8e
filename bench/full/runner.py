"""Runs the arms with step times between them and a soak after them, and extends their report."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from rich.console import Console
from typing_extensions import override

from seer_sgl.benchmark.arms import ARMS, SEER, Arm
from seer_sgl.benchmark.command import bench
from seer_sgl.benchmark.config import BenchConfig
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import Runner
from seer_sgl.report.style import can_draw
from seer_sgl.sim.config import SimConfig

from .lanes import draw_pair, typical_pair
from .page import full_page
from .prediction import Constants, measure_constants, predict
from .router import ROUTER, RoutedFleets, require_router
from .soak import SoakRow, draw_soak, drift, soak

logger = logging.getLogger(f"seer_sgl.{__name__}")  # shown like the lines of the package


class FullRunner(Runner):
    """Keeps all measurements. `sim`: the simulation of the benchmark, if there is to be one;
    `rollouts`: of the soak; `router`: whether arm `router` runs after the first arm."""

    def __init__(
        self, config: BenchConfig, out: Path, *, sim: SimConfig | None, rollouts: int, router: bool
    ) -> None:
        """Raises ConfigError like Runner, and if the router cannot run."""
        super().__init__(config, out)
        self.measurements: list[Measurement] = []
        self.soaked: list[SoakRow] = []
        self.sim = sim
        self.constants: dict[int, Constants | None] = {}  # before each round; None: not measured
        self._rollouts = rollouts
        if router:
            require_router(self.config)
            self.arms.insert(1, ROUTER)
            self.fleets = RoutedFleets(self.config, out / "engines")

    @override
    async def rounds(self) -> AsyncIterator[Measurement]:
        async for measurement in super().rounds():
            self.measurements.append(measurement)
            yield measurement
        if self.constants:
            await self._measure_constants(max(self.constants) + 1)
        async for row in soak(self, self._soak_rollouts()):
            self.soaked.append(row)
            logger.info("soak %d/%d: %.1f s", row.number + 1, self._rollouts, row.wall_s)

    @override
    async def once(self, arm: Arm, number: int, seed: int) -> Measurement:
        await self._measure_constants(number)
        measurement = await super().once(arm, number, seed)
        if arm is not ROUTER:
            return measurement
        # The report knows when the router is idle, not the servers behind it.
        row = msgspec.structs.replace(measurement.row, idle=None)
        return msgspec.structs.replace(measurement, row=row)

    async def _measure_constants(self, number: int) -> None:
        """Measures before every round and after the last, because a shared machine is not equally
        fast all the time; only before the first one if servers of one kind have to stop for those
        of another."""
        if self.sim is None or number in self.constants:
            return
        beside = self.own_servers and self.config.bench.colocate_servers
        known = number > 0 and not beside
        self.constants[number] = self.constants[0] if known else await measure_constants(self)

    def _soak_rollouts(self) -> int:
        """The soak reloads weights, so it needs servers of its own; and it needs arm `seer`."""
        failed = {failure.arm for failure in self.failures}
        sound = self.own_servers and ARMS[SEER] in self.arms and SEER not in failed
        return self._rollouts if sound else 0


async def run_full(runner: FullRunner, console: Console) -> None:
    """Runs the benchmark and extends its report. Raises like `bench`."""
    try:
        await bench(runner, console)
    finally:
        if runner.measurements:
            # The simulator has an event loop of its own.
            await asyncio.to_thread(extend_report, runner)


def extend_report(runner: FullRunner) -> None:
    """Adds prediction, soak and lanes to the files of `seer-sgl bench`."""
    out = runner.out
    report = json.loads((out / "report.json").read_text())
    report |= {
        "predicted": _predicted(runner),
        "soak": msgspec.to_builtins(runner.soaked),
        "soak_drift": drift(runner.soaked),
    }
    pair = typical_pair(runner.measurements)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (out / "report.md").write_text(full_page(report, lanes=pair is not None))
    if pair is not None:
        (out / "lanes.json").write_bytes(msgspec.json.encode(pair) + b"\n")
    if can_draw():
        if pair is not None:
            draw_pair(pair, out / "lanes")
        if runner.soaked:
            draw_soak(runner.soaked, out / "soak")


def _predicted(runner: FullRunner) -> dict[str, object]:
    measured = {number: one for number, one in runner.constants.items() if one is not None}
    if runner.sim is None or not measured:
        return {}
    around = {
        number: [measured[at] for at in (number, number + 1) if at in measured]
        for number in range(runner.config.bench.rounds)
    }
    return predict(runner.sim, around, runner.config.scheduling, runner.measurements)
