"""One simulated rollout: the real loop, scheduler and recorder on the virtual clock."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence

from seer_sgl.engine.protocol import Engine
from seer_sgl.rollout.loop import RolloutLoop
from seer_sgl.rollout.monitor import Monitor
from seer_sgl.rollout.recorder import Recorder
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Group, Prompt, Request

from .clock import run_virtually
from .config import SimConfig
from .engine import SimulatedEngine
from .tokens import ids, logprobs
from .workload import Responses

SEED = 0  # lengths are given, so nothing is left to chance

MakeScheduler = Callable[[Sequence[Engine], Mapping[str, int]], Scheduler]


def simulate(
    responses: Sequence[Responses],
    max_response_len: int,
    config: SimConfig,
    make_scheduler: MakeScheduler,
) -> Recorder:
    """Roll the groups out in virtual time; what the recorder saw.

    `make_scheduler`: from the engines and the true lengths by request uid (for the oracle).
    """
    groups = make_groups(responses, max_response_len)
    lengths = {
        request.uid: length
        for group, planned in zip(groups, responses, strict=True)
        for request, length in zip(group.requests, planned.lengths, strict=True)
    }
    return run_virtually(_roll_out(groups, lengths, config, make_scheduler))


async def _roll_out(
    groups: Sequence[Group],
    lengths: Mapping[str, int],
    config: SimConfig,
    make_scheduler: MakeScheduler,
) -> Recorder:
    clock = asyncio.get_running_loop().time

    def stored(rid: str, whole: bool) -> None:
        loop.stored(rid, whole)

    engines = [
        SimulatedEngine(f"e{i}", config, lengths, stored) for i in range(config.engine.count)
    ]
    scheduler = make_scheduler(engines, lengths)
    by_id: dict[str, Engine] = {engine.info.engine_id: engine for engine in engines}
    loop = RolloutLoop(scheduler, by_id, clock, lambda _, reply: reply)
    recorder = Recorder("simulated", SEED, [engine.info for engine in engines], groups, 0.0)
    run = loop.submit(groups, [recorder])
    async with asyncio.TaskGroup() as tasks:
        driver = tasks.create_task(loop.run())
        for _ in groups:
            await run.done.get()
        driver.cancel()
    return recorder


def make_groups(responses: Sequence[Responses], max_response_len: int) -> list[Group]:
    """Groups of requests that keep count of their tokens instead of the tokens."""
    orders = itertools.count()
    groups = []
    for planned in responses:
        prompt = Prompt(
            prompt_id=planned.group_id, prompt_ids=planned.prompt_ids, n=len(planned.lengths)
        )
        group = Group(group_id=planned.group_id, uid=planned.group_id, prompt=prompt)
        group.requests = [
            Request(
                uid=f"r{order}",
                order=order,
                group=group,
                index=index,
                seed=SEED,
                max_response_len=max_response_len,
                response_ids=ids(),
                logprobs=logprobs(),
            )
            for index, order in zip(range(prompt.n), orders, strict=False)
        ]
        groups.append(group)
    return groups
