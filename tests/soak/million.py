"""Very many requests through the real loop and scheduler, on simulated engines that fail.

A group joins when another one has ended, and ended groups leave the driver. So the memory depends
on the number of unfinished requests, not on the number of all requests.
"""

import asyncio
import gc
import itertools
import sys
from array import array

import msgspec
import psutil

from bench.faults.faulted import FaultyFleet, faulted_settings
from bench.faults.faults import AckConfig, DeathConfig, FaultsConfig, OutageConfig, ReplyConfig
from seer_sgl.driver.driver import Driver
from seer_sgl.sim.clock import run_virtually
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import VERSION
from seer_sgl.sim.simulate import make_groups, stand_still
from seer_sgl.sim.source import load_settings
from seer_sgl.traces.trace import Responses
from seer_sgl.types import Group, WeightSpan

RESPONSE = 200  # tokens
PROMPT = 64  # tokens
SIZE = 8  # requests of a group
OPEN_GROUPS = 250
MARKS = 10  # measurements of memory

CONFIG: dict[str, dict[str, object]] = {
    "engine": {"count": 16, "kv_tokens": 60_000, "max_running_requests": 160},
    "workload": {"prompt_tokens": PROMPT, "lengths": {"mean": RESPONSE, "max": RESPONSE}},
    "scheduling": {"chunk_tokens": 64},
}
FAULTS = FaultsConfig(
    stall_timeout_s=10.0,
    recovery_timeout_s=1000.0,
    deaths=DeathConfig(mean_s=60.0, seconds=(1.0, 20.0), together=0.1, other_weights=0.2),
    hangs=OutageConfig(mean_s=120.0, seconds=(1.0, 30.0), together=0.1),
    cuts=OutageConfig(mean_s=120.0, seconds=(1.0, 30.0), together=0.1),
    reads=OutageConfig(mean_s=120.0, seconds=(1.0, 60.0), together=0.1),
    replies=ReplyConfig(lost=0.0002, late=0.005, late_s=(0.0, 10.0), doubled=0.001),
    acks=AckConfig(lost=0.01, late=0.01, late_s=(0.0, 10.0), doubled=0.01, untrue=0.01),
)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `blocks`: allocated by Python after equal numbers of requests; `memory_mb`: of
    the process then, free memory in its arenas included; `unfinished`: the requests that the driver
    held then; `virtual_s`: the simulated time."""

    requests: int
    seed: int
    blocks: list[int]
    memory_mb: list[float]
    unfinished: list[int]
    virtual_s: float
    wasted_tokens: int
    faults: dict[str, int]


class EqualLengths(dict[str, int]):
    """The same response length for every request, of which none is stored."""

    def __missing__(self, uid: str) -> int:
        return RESPONSE


def roll_out(requests: int, seed: int = 1) -> Figures:
    """Returns the figures of a rollout of so many requests.

    Raises AssertionError or SeerError if an invariant is broken.
    """
    faults = msgspec.structs.replace(FAULTS, seed=seed)
    return run_virtually(_roll_out(-(-requests // SIZE), load_settings(known=CONFIG), faults))


async def _roll_out(groups: int, config: SimConfig, faults: FaultsConfig) -> Figures:
    loop = asyncio.get_running_loop()
    fleet = FaultyFleet(config, EqualLengths(), faults)
    supply = (_group(number) for number in range(groups))
    ended, every = bytearray(groups), max(1, groups // MARKS)
    blocks: list[int] = []
    memory: list[float] = []
    unfinished: list[int] = []
    async with Driver.over(fleet, faulted_settings(config, faults), loop.time) as driver:
        run = driver.open_run()
        run.add(list(itertools.islice(supply, OPEN_GROUPS)))
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(fleet.live()), tasks.create_task(stand_still(driver))]
            for count in range(1, groups + 1):
                number = _checked(await anext(run))
                ended[number] += 1
                run.add(list(itertools.islice(supply, 1)))
                if count % every == 0:
                    gc.collect()
                    blocks.append(sys.getallocatedblocks())
                    memory.append(round(psutil.Process().memory_info().rss / 1e6, 1))
                    unfinished.append(SIZE * len(run.unfinished))
            for task in beside:
                task.cancel()
        run.complete()
        await asyncio.sleep(1.0)
        assert driver.check() == []
        assert ended == b"\1" * groups
    return Figures(
        requests=groups * SIZE,
        seed=faults.seed,
        blocks=blocks,
        memory_mb=memory,
        unfinished=unfinished,
        virtual_s=round(loop.time(), 1),
        wasted_tokens=sum(engine.wasted_tokens for engine in fleet.faulty),
        faults=dict(fleet.counts),
    )


def _group(number: int) -> Group:
    planned = Responses(str(number), array("i", [number]) * PROMPT, [RESPONSE] * SIZE)
    (group,) = make_groups([planned], RESPONSE, first=number * SIZE)
    return group


def _checked(group: Group) -> int:
    """Returns the number of a group. Raises AssertionError if it is not complete and right."""
    assert group.failure is None
    assert sorted(sample.index for sample in group.samples) == list(range(SIZE))
    for sample in group.samples:
        assert len(sample.response_ids) == len(sample.rollout_log_probs) == RESPONSE
        assert sample.weight_spans == [WeightSpan(VERSION, RESPONSE)]
        assert sample.finish_reason == "length"
    return int(group.group_id)
