"""All arms in turn, round after round, on real servers."""

import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from seer_sgl.config import Config
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine.launch.process import api_key
from seer_sgl.errors import (
    ConfigError,
    EngineError,
    EngineStartError,
    HubError,
    PoolError,
    RolloutError,
)
from seer_sgl.rollout.model import model_facts

from .arms import BASELINE, EVERY, Arm
from .config import BenchConfig
from .derive import arm_config
from .fleets import Fleets
from .measure import Digests, Measurement, Workload, roll, write_lengths
from .router import ROUTER
from .workloads import Source

logger = logging.getLogger(__name__)
FAILURES = (ConfigError, EngineError, EngineStartError, HubError, PoolError, RolloutError)
WARM_UP = 2  # prompts
# Measurement out once a seed before anything is measured: the samples that every arm must have.
REFERENCES = {False: EVERY[BASELINE], True: EVERY["greedy"]}


class Reference(msgspec.Struct, frozen=True):
    """Of one seed: its samples by name, and a file with their lengths."""

    digests: Digests
    lengths: Path


class ArmFailure(msgspec.Struct, frozen=True):
    """Why an arm was left out, from which round on."""

    arm: str
    round: int
    error: str


class Runner:
    """Runs the arms of a benchmark. `out` takes logs and the lengths of the oracle."""

    def __init__(self, config: BenchConfig, arms: Sequence[Arm], out: Path) -> None:
        self._config = config
        self._arms = arms
        self._out = out
        self._source = Source(config)
        self._fleets = Fleets(config, out / "engines")
        self.failures: list[ArmFailure] = []
        self._references: dict[tuple[int, bool], Reference] = {}
        self._warm: dict[str, Fleet] = {}  # by kind

    async def rounds(self) -> AsyncIterator[Measurement]:
        """Every arm once a round; the next round has the next seed, and the arms in reverse.

        An arm that fails is left out from then on. Raises SeerError when none is left.
        """
        seeds, arms = self.seeds, list(self._arms)
        for number in range(self._config.bench.rounds):
            for arm in arms[:] if number % 2 == 0 else arms[::-1]:
                try:
                    yield await self.once(arm, number, seeds[number % len(seeds)])
                except FAILURES as error:
                    logger.info("without %s from now on: %s", arm.name, error)
                    self.failures.append(ArmFailure(arm.name, number, str(error)))
                    arms.remove(arm)
                    await self._fleets.close()
                    if not arms:
                        raise

    async def once(self, arm: Arm, number: int, seed: int) -> Measurement:
        """One measured rollout."""
        reference = await self._reference(arm.greedy, seed)
        return await self._roll(arm, number, self._work(arm, seed), reference)

    @property
    def own_servers(self) -> bool:
        """Whether they were started for the benchmark."""
        return self._config.engines.launch == "local"

    @property
    def seeds(self) -> list[int]:
        """Of the workloads."""
        return self._config.bench.seeds

    @property
    def api_key(self) -> str | None:
        """Of the servers."""
        return api_key(self._config.engines)

    @property
    def kv_bytes(self) -> float:
        """Of a token, as far as the model's folder shows."""
        return model_facts(self._config.model.path).least_kv_bytes_per_token() or 1.0

    async def servers(self, arm: Arm) -> Fleet:
        """Those that the arm runs on, up."""
        return await self._fleets.of(arm)

    async def aclose(self) -> None:
        """Stop all servers."""
        await self._fleets.close()

    async def _reference(self, greedy: bool, seed: int) -> Reference:
        if (seed, greedy) not in self._references:
            arm = self._reference_arm(greedy)
            rolled = await self._roll(arm, -1, self._work(arm, seed), None)
            path = self._out / f"lengths-{seed}{'-greedy' if greedy else ''}.jsonl"
            write_lengths(path, rolled.lengths)
            self._references[seed, greedy] = Reference(rolled.digests, path)
        return self._references[seed, greedy]

    def _reference_arm(self, greedy: bool) -> Arm:
        """A plain one; where there are no plain servers, the first arm there is."""
        if self.own_servers or "plain" in self._config.bench.urls:
            return REFERENCES[greedy]
        return next(arm for arm in self._arms if arm.greedy == greedy)

    def _work(self, arm: Arm, seed: int) -> Workload:
        return self._source.draw_single(seed) if arm.greedy else self._source.draw(seed)

    async def _roll(
        self, arm: Arm, number: int, work: Workload, reference: Reference | None
    ) -> Measurement:
        lengths = None if reference is None else str(reference.lengths)
        config = arm_config(arm, self._config, work.seed, lengths)
        fleet = await self._fleets.of(arm)
        await self._warm_up(arm, fleet, config, work)
        digests = None if reference is None else reference.digests
        rolled = await roll(
            arm.name,
            fleet,
            config,
            work,
            number=number,
            reference=digests,
        )
        if rolled.row.samples < sum(prompt.n for prompt in work.prompts):
            raise RolloutError(f"{arm.name}: samples are missing")
        return rolled

    async def _warm_up(self, arm: Arm, fleet: Fleet, config: Config, work: Workload) -> None:
        """The first rollout on servers pays for what they load and compile late."""
        kind = ROUTER if arm.router else arm.kind
        if self._warm.get(kind) is not fleet:
            some = Workload(work.seed, work.prompts[:WARM_UP], work.limits)
            await roll(
                arm.name,
                fleet,
                config,
                some,
                number=-1,
                reference=None,
            )
            self._warm[kind] = fleet
