"""One simulated rollout: the real driver and recorder on the virtual clock."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from seer_sgl.config import EnginesConfig
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.settings import Settings
from seer_sgl.errors import SeerError, SimulationError, first_error
from seer_sgl.report.recorder import Recorder
from seer_sgl.sampling import Sampling
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.timing import Timing
from seer_sgl.traces.trace import Responses
from seer_sgl.types import Group, Prompt, Request

from .clock import run_virtually
from .config import SimConfig
from .engine import SimulatedFleet, token_source
from .tokens import ids, logprobs

SEED = 0  # lengths are given, so a run has no randomness
# No other client uses a simulated engine, so its load is polled for the timeline only.
POLL_S = 10.0
SETTLE_S = 1.0  # chunks of given-up groups end in less
FOREVER_S = 1e12  # simulated engines do not stall


class Simulated(NamedTuple):
    """A simulated rollout. `forward_steps`: batches that the engines ran, all together;
    `pool_peak`: the most KV tokens in the pool at once."""

    record: Recorder
    forward_steps: int
    pool_peak: int


def simulate(
    responses: Sequence[Responses],
    config: SimConfig,
    prior: KnownLengths | None = None,
    observers: Sequence[Observer] = (),
) -> Simulated:
    """Rolls the groups out in virtual time.

    `prior`: lengths of earlier rollouts for the policy `seer`; the oracle gets the true lengths.
    """
    return run_virtually(_roll_out(responses, config, prior, observers))


async def _roll_out(
    responses: Sequence[Responses],
    config: SimConfig,
    prior: KnownLengths | None,
    observers: Sequence[Observer],
) -> Simulated:
    groups = make_groups(responses, config.workload.lengths.max)
    fleet = SimulatedFleet(config, true_lengths(groups, responses))
    settings = driver_settings(config, known_lengths(config, responses, prior))
    return Simulated(
        record=await roll_out(groups, fleet, settings, observers),
        forward_steps=sum(engine.forward_steps for engine in fleet.engines),
        pool_peak=fleet.pool.peak,
    )


async def roll_out(
    groups: Sequence[Group],
    fleet: SimulatedFleet,
    settings: Settings,
    observers: Sequence[Observer] = (),
) -> Recorder:
    """Rolls the groups out on the event loop's clock. Returns the recorder of the run."""
    infos = [engine.info for engine in fleet.engines]
    recorder = Recorder("simulated", SEED, infos, groups, 0.0)
    clock = asyncio.get_running_loop().time
    async with Driver.over(fleet, settings, clock) as driver:
        run = driver.submit(groups, [recorder, *observers])
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(fleet.live()),
                    tasks.create_task(stand_still(driver)),
                ]
                async for _ in run:
                    pass
                for task in beside:
                    task.cancel()
        except* SeerError as failures:
            failure = first_error(failures)
        # Python before 3.11.4 wraps what is raised inside `except*` into a group (gh-103590).
        if failure is not None:
            raise failure
        await asyncio.sleep(SETTLE_S)
        if breaches := driver.check():
            raise SimulationError(f"the rollout is over, but {'; '.join(breaches)}")
    return recorder


async def stand_still(driver: Driver) -> None:
    """Raises SimulationError if no progress is possible. The loop cannot detect this, because the
    monitor always has a next timer. If no engine is available, the monitor decides how long to
    wait."""
    still = 0  # consecutive polls; the driver may be about to send a chunk at one of them
    while still < 2:
        await asyncio.sleep(POLL_S)
        able = not driver.paused and any(state.available for state in driver.states())
        still = still + 1 if driver.stands_still and able else 0
    raise SimulationError("the simulation stands still: no engine can take the remaining requests")


def known_lengths(
    config: SimConfig, responses: Sequence[Responses], prior: KnownLengths | None
) -> KnownLengths | None:
    """Returns the lengths that the policy knows: the true ones for the oracle."""
    return truth(responses) if config.scheduling.policy == "oracle" else prior


def driver_settings(config: SimConfig, known: KnownLengths | None) -> Settings:
    """Returns the settings of a driver in virtual time, with the config's rates as costs."""
    pool, engine = config.pool, config.engine
    costs = Costs(
        prefill_tok_s=engine.prefill_tok_s,
        fetch_tok_s=pool.gb_s * 1e9 / engine.kv_bytes_per_token,
        latency_s=pool.latency_ms * 1e-3,
    )
    return Settings(
        scheduling=config.scheduling,
        engines=EnginesConfig(stall_timeout_s=FOREVER_S, recovery_timeout_s=FOREVER_S),
        timing=Timing(poll_s=POLL_S),
        known=known,
        costs=costs,
    )


def true_lengths(groups: Sequence[Group], responses: Sequence[Responses]) -> dict[str, int]:
    """Returns the response tokens by request uid."""
    return {
        request.uid: length
        for group, planned in zip(groups, responses, strict=True)
        for request, length in zip(group.requests, planned.lengths, strict=True)
    }


def truth(responses: Sequence[Responses]) -> KnownLengths:
    """Returns the true lengths, for the oracle."""
    known = KnownLengths()
    for planned in responses:
        for index, length in enumerate(planned.lengths):
            known.add(length, prompt_ids=None, group_id=planned.group_id, index=index)
    return known


def make_groups(
    responses: Sequence[Responses], max_response_len: int, first: int = 0
) -> list[Group]:
    """Returns groups of requests that store the number of their tokens instead of the tokens.

    `first`: the number of the first request.
    """
    orders, sampling = itertools.count(first), Sampling(max_new_tokens=max_response_len)
    groups = []
    for planned in responses:
        prompt = Prompt(
            prompt_id=planned.group_id, prompt_ids=planned.prompt_ids, n=len(planned.lengths)
        )
        group = Group(
            group_id=planned.group_id, uid=planned.group_id, prompt=prompt, sampling=sampling
        )
        group.requests = [
            Request(
                uid=f"r{order}",
                order=order,
                group=group,
                index=index,
                seed=SEED,
                max_response_len=max_response_len,
                response_ids=ids(token_source(f"r{order}")),
                logprobs=logprobs(token_source(f"r{order}")),
            )
            for index, order in zip(range(prompt.n), orders, strict=False)
        ]
        groups.append(group)
    return groups
