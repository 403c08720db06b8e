"""A simulated rollout on a fleet with faults, and what the faults cost."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.config import EnginesConfig
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.settings import Settings
from seer_sgl.report.recorder import Recorder
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.sim.clock import run_virtually
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import SimulatedFleet
from seer_sgl.sim.simulate import (
    driver_settings,
    known_lengths,
    make_groups,
    roll_out,
    true_lengths,
)
from seer_sgl.timing import DEFAULT
from seer_sgl.traces.trace import Responses

from .faults import FaultsConfig, Kind, OutageConfig
from .faulty import FaultyEngine
from .messages import FleetFaults


class Faulted(msgspec.Struct, frozen=True):
    """A rollout with faults. `counts`: the faults that happened, by name; `wasted_tokens`: decoded
    and in no sample; `prefilled_tokens`: input tokens that the engines computed."""

    record: Recorder
    counts: Counter[str]
    wasted_tokens: int
    prefilled_tokens: int


def simulate_faulted(
    responses: Sequence[Responses],
    config: SimConfig,
    faults: FaultsConfig,
    prior: KnownLengths | None = None,
    observers: Sequence[Observer] = (),
) -> Faulted:
    """Rolls the groups out in virtual time, on engines that fail.

    Raises RolloutError if the rollout fails.
    """
    return run_virtually(_roll_out(responses, config, faults, prior, observers))


async def _roll_out(
    responses: Sequence[Responses],
    config: SimConfig,
    faults: FaultsConfig,
    prior: KnownLengths | None,
    observers: Sequence[Observer],
) -> Faulted:
    groups = make_groups(responses, config.workload.lengths.max)
    fleet = FaultyFleet(config, true_lengths(groups, responses), faults)
    settings = faulted_settings(config, faults, known_lengths(config, responses, prior))
    record = await roll_out(groups, fleet, settings, observers)
    return Faulted(
        record=record,
        counts=fleet.counts,
        wasted_tokens=sum(engine.wasted_tokens for engine in fleet.faulty),
        prefilled_tokens=sum(engine.prefilled_tokens for engine in fleet.faulty),
    )


def faulted_settings(
    config: SimConfig, faults: FaultsConfig, known: KnownLengths | None = None
) -> Settings:
    """Returns the settings of a driver that notices faults as a real one does."""
    engines = EnginesConfig(
        stall_timeout_s=faults.stall_timeout_s, recovery_timeout_s=faults.recovery_timeout_s
    )
    settings = driver_settings(config, known)
    return msgspec.structs.replace(settings, engines=engines, timing=DEFAULT)


class FaultyFleet(SimulatedFleet):
    """A fleet of faulty engines."""

    def __init__(self, config: SimConfig, lengths: Mapping[str, int], faults: FaultsConfig) -> None:
        self._faults = FleetFaults(faults)
        self._settings = config, lengths
        self.faulty: list[FaultyEngine] = []
        super().__init__(config, lengths)

    @property
    def counts(self) -> Counter[str]:
        """The faults that happened, by name."""
        return self._faults.counts

    def start_engine(self) -> FaultyEngine:
        """Returns one more engine, which the driver has to add."""
        return self._engine(f"e{len(self.faulty)}", *self._settings)

    @override
    def _engine(
        self, engine_id: str, config: SimConfig, lengths: Mapping[str, int]
    ) -> FaultyEngine:
        engine = FaultyEngine(
            engine_id, config, lengths, self._stored, self.pool, faults=self._faults
        )
        self.faulty.append(engine)
        return engine

    @override
    async def live(self) -> None:
        faults, loop = self._faults.config, asyncio.get_running_loop()
        for event in faults.events:
            hit = self.faulty if event.engine is None else [self.faulty[event.engine]]
            for engine in hit:
                loop.call_at(
                    event.at_s, engine.strike, event.kind, event.seconds, event.other_weights
                )
        async with asyncio.TaskGroup() as tasks:
            for kind, outages in faults.outages.items():
                if outages.mean_s is not None:
                    tasks.create_task(self._fail(kind, outages, outages.mean_s))

    async def _fail(self, kind: Kind, outages: OutageConfig, mean_s: float) -> None:
        """Causes outages of one kind at random times, until cancelled."""
        faults, draw = self._faults.config, random.Random(f"{self._faults.config.seed} {kind}")
        other_weights = faults.deaths.other_weights if kind == "death" else 0.0
        while True:
            await asyncio.sleep(draw.expovariate(len(self.faulty) / mean_s))
            together = len(self.faulty) > 1 and draw.random() < outages.together
            hit = draw.sample(self.faulty, draw.randint(2, len(self.faulty)) if together else 1)
            for engine in hit:
                seconds = draw.uniform(*outages.seconds)
                engine.strike(kind, seconds, draw.random() < other_weights)
