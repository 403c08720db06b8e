"""What a rollout keeps of groups that its caller has taken."""

import gc
import weakref
from collections.abc import Sequence

from typing_extensions import override

from seer_sgl import Observer, Rollout
from seer_sgl.types import Group, Request
from tests.rollout.fakes import PROMPTS, fakes, turns
from tests.support.waiting import until


async def test_a_complete_group_leaves_with_its_caller() -> None:
    taken = []
    async with fakes() as it, Rollout(it.config) as rollout:
        async for group in rollout.run(PROMPTS):
            taken.append(weakref.ref(group))
            del group
            if len(taken) == len(PROMPTS):
                gc.collect()
                *before, last = [group() is None for group in taken]
                assert all(before)
                assert not last, "the last one is still the generator's"
    assert len(taken) == len(PROMPTS)


class Seen(Observer):
    """The groups of a run that are in memory."""

    def __init__(self) -> None:
        self.groups = weakref.WeakSet[Group]()
        self.requests = 0

    @override
    def submitted(self, requests: Sequence[Request], now: float) -> None:
        self.groups.update(request.group for request in requests)
        self.requests += len(requests)


async def test_the_turns_of_trajectories_are_freed_without_a_garbage_collection() -> None:
    seen = Seen()
    gc.disable()
    try:
        async with fakes() as it, Rollout(it.config) as rollout:
            async for done in rollout.trajectories(turns, PROMPTS, [seen]):
                assert done.results
            assert seen.requests > len(PROMPTS)
            await until(lambda: not seen.groups)
    finally:
        gc.enable()
