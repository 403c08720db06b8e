"""Rollouts that are repeated while the engines below them come and go."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from seer_sgl import Rollout
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Prompt
from tests.e2e.compare import Samples, by_key

WAIT_S = 300.0  # a start on a busy machine takes minutes
MOST_TOKENS = 600  # of a response
runs = itertools.count()


async def until(done: Callable[[], bool]) -> None:
    """Waits until a condition holds; it may block."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await asyncio.to_thread(done):
                return
            await asyncio.sleep(0.5)


async def roll(rollout: Rollout, prompts: list[Prompt]) -> tuple[Samples, dict[str, Any]]:
    """Returns the samples, which have the same seeds in every run, and the report."""
    name, began = f"run{next(runs)}", time.monotonic()
    maker = GroupMaker(name, 7)
    sampling = rollout.config.sampling
    groups = [maker.group(prompt, sampling, MOST_TOKENS, began) for prompt in prompts]
    record = Recorder(name, 7, rollout.engines, groups, began)
    run = rollout.driver.submit(groups, [record], rollout_id=name, started_at=began)
    ended = [group async for group in run]
    assert all(group.failure is None for group in ended)
    return by_key([sample for group in ended for sample in group.samples]), report(record)
