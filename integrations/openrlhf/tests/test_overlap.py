"""Rewards begin while other samples are still being generated."""

import asyncio
from typing import Any

from fake_fleet import FakeClient
from openrlhf.utils.agent import SingleTurnAgentExecutor
from sampling import Setup, sampling


def test_rewards_begin_before_the_last_sample_ends() -> None:
    fleet = FakeClient()
    fleet.gates = {"3": asyncio.Event()}
    executor = SingleTurnAgentExecutor()
    executor.reward_endpoints = ["reward.py"]
    with sampling(Setup(fleet=fleet, executor=executor)) as run:

        def reward(queries: list[str], prompts: list[str], labels: list[str]) -> Any:
            """The last group's samples end only after the reward of the first one's has begun."""
            fleet.events.append(("reward", labels[0]))
            run.ray.soon(fleet.gates["3"].set)
            return {"rewards": 1.0}

        executor.reward_func = reward
        assert len(run.batch()) == 8
    kinds = [kind for kind, _ in fleet.events]
    assert kinds.index("reward") < len(kinds) - 1 - kinds[::-1].index("sample")
    assert kinds.count("reward") == kinds.count("sample") == 8
