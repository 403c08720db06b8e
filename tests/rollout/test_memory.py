"""What a rollout keeps of groups that its caller has taken."""

import gc
import weakref

from seer_sgl import Rollout
from tests.rollout.fakes import fakes

GROUPS = 6


async def test_a_complete_group_leaves_with_its_caller() -> None:
    prompts = [{"id": f"p{i}", "prompt_ids": [5] * (3 + i)} for i in range(GROUPS)]
    taken = []
    async with fakes() as it, Rollout(it.config) as rollout:
        async for group in rollout.run(prompts):
            taken.append(weakref.ref(group))
            del group
            if len(taken) == GROUPS:
                gc.collect()
                assert [group() is None for group in taken] == [True] * (GROUPS - 1) + [False], (
                    "the last one is still the generator's"
                )
    assert len(taken) == GROUPS
