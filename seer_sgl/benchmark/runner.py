"""Runs all arms in turn on real servers, for several rounds."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from seer_sgl.config import Config, StartedEngines, with_values
from seer_sgl.engine.fleet import Fleet
from seer_sgl.errors import (
    ConfigError,
    EngineError,
    EngineStartError,
    HubError,
    PoolError,
    RolloutError,
)
from seer_sgl.files import out_has, refuse_rollout
from seer_sgl.kvpool.backend import resolved

from .arms import BASELINE, EVERY, Arm
from .config import BenchConfig
from .derive import arm_config
from .fleets import Fleets, runnable
from .measure import Digests, Measurement, Workload, roll, write_lengths
from .workloads import Source

logger = logging.getLogger(__name__)
FAILURES = (ConfigError, EngineError, EngineStartError, HubError, PoolError, RolloutError)
WARM_UP = 2  # prompts
# The arm that runs once per seed before any measurement: every arm must return the same samples.
REFERENCES = {False: EVERY[BASELINE], True: EVERY["greedy"]}


class Reference(msgspec.Struct, frozen=True):
    """The reference of one seed: the digests of its samples, and a file with their lengths."""

    digests: Digests
    lengths: Path


class ArmFailure(msgspec.Struct, frozen=True):
    """The error of an arm, and the round in which it failed. Later rounds skip the arm."""

    arm: str
    round: int
    error: str


class Runner:
    """Runs the arms of a benchmark. `out`: the folder of its results."""

    def __init__(self, config: BenchConfig, out: Path) -> None:
        """Raises ConfigError if `out` has a benchmark or a rollout, or no arm can run, and
        InputError if a file is invalid."""
        if out_has(out, "rounds.jsonl"):  # first: reading the files takes seconds
            raise ConfigError(
                f"--out {out}: the folder already has a benchmark; use another folder"
            )
        refuse_rollout(out)
        self.config = with_values(config, {"kv_pool": resolved(config.kv_pool)})
        self.arms = runnable(self.config)
        self.out = out
        self.fleets = Fleets(self.config, out / "engines")
        self.failures: list[ArmFailure] = []
        self._source = Source(self.config)
        self._references: dict[tuple[int, bool], Reference] = {}
        self._warm: set[Fleet] = set()

    async def rounds(self) -> AsyncIterator[Measurement]:
        """Runs every arm once per round. Each round takes the next seed and reverses the arms.

        A seed that is taken again has them in the other order, however many seeds there are.

        If an arm fails, later rounds skip it. Raises SeerError if all arms have failed.
        """
        seeds, arms = self.config.bench.seeds, list(self.arms)
        for number in range(self.config.bench.rounds):
            turn, place = divmod(number, len(seeds))
            for arm in arms[:] if (turn + place) % 2 == 0 else arms[::-1]:
                try:
                    yield await self.once(arm, number, seeds[place])
                except FAILURES as error:
                    logger.info("arm %s failed, later rounds skip it: %s", arm.name, error)
                    self.failures.append(ArmFailure(arm.name, number, str(error)))
                    arms.remove(arm)
                    await self.fleets.close()
                    if not arms:
                        raise

    async def once(self, arm: Arm, number: int, seed: int) -> Measurement:
        """Runs one measured rollout."""
        reference = await self._reference(arm.greedy, seed)
        return await self._roll(arm, number, self._work(arm, seed), reference)

    def rollout_config(self, arm: Arm, seed: int, lengths: str | None) -> Config:
        """Returns the config of a rollout. `lengths`: a file with the true ones, for the oracle."""
        return arm_config(arm, self.config, seed, lengths)

    @property
    def own_servers(self) -> bool:
        """Whether the benchmark started the servers."""
        return isinstance(self.config.engines, StartedEngines)

    async def aclose(self) -> None:
        """Stops all servers."""
        await self.fleets.close()

    async def _reference(self, greedy: bool, seed: int) -> Reference:
        if (seed, greedy) not in self._references:
            arm = self._reference_arm(greedy)
            measurement = await self._roll(arm, -1, self._work(arm, seed), None)
            path = self.out / f"lengths-{seed}{'-greedy' if greedy else ''}.jsonl"
            write_lengths(path, measurement.lengths)
            self._references[seed, greedy] = Reference(measurement.digests, path)
        return self._references[seed, greedy]

    def _reference_arm(self, greedy: bool) -> Arm:
        """Returns the plain arm; the first configured arm if there are no plain servers."""
        if self.own_servers or "plain" in self.config.bench.urls:
            return REFERENCES[greedy]
        return next(arm for arm in self.arms if arm.greedy == greedy)

    def _work(self, arm: Arm, seed: int) -> Workload:
        return self._source.draw_single(seed) if arm.greedy else self._source.draw(seed)

    async def _roll(
        self, arm: Arm, number: int, work: Workload, reference: Reference | None
    ) -> Measurement:
        lengths = None if reference is None else str(reference.lengths)
        config = self.rollout_config(arm, work.seed, lengths)
        fleet = await self.fleets.of(arm)
        await self._warm_up(arm, fleet, config, work)
        digests = None if reference is None else reference.digests
        measurement = await roll(
            arm.name,
            fleet,
            config,
            work,
            number=number,
            reference=digests,
        )
        if measurement.row.samples < sum(prompt.n for prompt in work.prompts):
            raise RolloutError(f"{arm.name}: samples are missing")
        return measurement

    async def _warm_up(self, arm: Arm, fleet: Fleet, config: Config, work: Workload) -> None:
        """Runs a short rollout on new servers, which load and compile parts at their first one."""
        if fleet not in self._warm:
            some = Workload(work.seed, work.prompts[:WARM_UP], work.limits)
            await roll(arm.name, fleet, config, some, number=-1, reference=None)
            self._warm.add(fleet)
