"""A simulated rollout that gives engines back, and what it gave back at which cost."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.config import with_values
from seer_sgl.driver.observer import Observer
from seer_sgl.report.recorder import Recorder
from seer_sgl.sim.clock import run_virtually
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import SimulatedFleet
from seer_sgl.sim.simulate import driver_settings, make_groups, roll_out, true_lengths
from seer_sgl.sim.variants import VARIANTS, Scenario
from seer_sgl.types import Chunk

from .policy import Folding, LikelyLengths, Progress, TrueLengths

POLICY = "seer"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout is folded. `slack`: the share of its time that the policy plans to be late by;
    `oracle`: true lengths are known."""

    slack: float
    oracle: bool = False


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rollout. `released`: the share of all engine-seconds after engines were
    given back; without folding, after the last chunk of each. `engines`: when how many were left,
    seconds. `fetched_tokens`: KV that engines read from the pool."""

    wall_s: float
    released: float
    engines: list[tuple[float, int]]
    migrations: int
    fetched_tokens: int
    recomputed_tokens: int
    response_tokens: int


def rolled_out(scenario: Scenario, arm: Arm | None, observers: Sequence[Observer] = ()) -> Folded:
    """Rolls a scenario out under `seer`, folded by the arm or not."""
    config = with_values(scenario.config, VARIANTS[POLICY])
    return run_virtually(_roll_out(scenario, config, arm, observers))


async def _roll_out(
    scenario: Scenario, config: SimConfig, arm: Arm | None, observers: Sequence[Observer]
) -> Folded:
    clock = asyncio.get_running_loop().time
    groups = make_groups(scenario.responses, config.workload.lengths.max)
    lengths = true_lengths(groups, scenario.responses)
    fleet = _Fleet(config, lengths)
    settings = driver_settings(config, scenario.prior)
    progress = Progress(groups, clock)
    seen: list[Observer] = [progress, *observers]
    closed_at: Mapping[str, float] = {}
    if arm is not None:
        known = TrueLengths(lengths) if arm.oracle else LikelyLengths(groups)
        if isinstance(known, LikelyLengths):
            seen.append(known)
        placement = Folding(
            config,
            settings.costs,
            progress,
            known,
            arm.slack,
            clock=clock,
            cut=fleet.cuts.put_nowait,
        )
        settings = msgspec.structs.replace(settings, placement=placement)
        closed_at = placement.closed_at
    record = await roll_out(groups, fleet, settings, seen)
    ends = progress.last_end
    if arm is not None:
        ends = {engine: max(at, ends.get(engine, 0.0)) for engine, at in closed_at.items()}
    return figures(record, ends, config.engine.count)


def figures(record: Recorder, ends: Mapping[str, float], engines: int) -> Folded:
    """Returns the figures of a rollout. `ends`: when engines were given back, by their ids."""
    wall_s, totals = record.finished_at[-1], record.totals
    times = sorted(at for at in ends.values() if at < wall_s)
    return Folded(
        wall_s=round(wall_s, 1),
        released=round(sum(wall_s - at for at in times) / (engines * wall_s), 4),
        engines=[(round(at, 1), engines - count) for count, at in enumerate(times, 1)],
        migrations=totals.migrations,
        fetched_tokens=totals.storage,
        recomputed_tokens=totals.recomputed,
        response_tokens=sum(record.response_lens),
    )


class _Fleet(SimulatedFleet):
    """A fleet that ends chunks early when it is asked to."""

    def __init__(self, config: SimConfig, lengths: Mapping[str, int]) -> None:
        super().__init__(config, lengths)
        self.cuts: asyncio.Queue[Chunk] = asyncio.Queue()

    @override
    async def live(self) -> None:
        engines = {engine.info.engine_id: engine for engine in self.engines}
        while True:
            chunk = await self.cuts.get()
            await engines[chunk.engine_id].abort(chunk)
