"""What a rollout keeps of groups that its caller has taken."""

import gc

from seer_sgl import Rollout
from seer_sgl.types import Group
from tests.rollout.fakes import fakes

GROUPS = 12


def alive() -> int:
    """Returns how many of the test's groups are in memory."""
    gc.collect()
    every = [thing for thing in gc.get_objects() if type(thing) is Group]
    return sum(group.group_id.startswith("leaves-") for group in every)


async def test_a_complete_group_leaves_with_its_caller() -> None:
    prompts = [{"id": f"leaves-{i}", "prompt_ids": [5] * (3 + i)} for i in range(GROUPS)]
    async with fakes() as it, Rollout(it.config) as rollout:
        taken = 0
        async for group in rollout.run(prompts):
            taken += 1
            del group
            assert alive() <= GROUPS - taken + 1, "the last one is still the generator's"
    assert taken == GROUPS
