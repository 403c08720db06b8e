"""Rewards and executors that fail: OpenRLHF's own executors behind the front."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_fleet import FakeClient
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from sampling import TOKENIZER, params
from seer_openrlhf.front import Front
from seer_openrlhf.groups import ATTEMPTS, PromptFailed
from seer_openrlhf.ports import free_port
from seer_openrlhf.rewards import RewardError, RewardExecutor, require_equal

Json = dict[str, Any]
SAMPLES = 2
FUNCTION = """
failed = []
def reward_func(queries, prompts, labels):
    {body}
"""


def executor_with(folder: Path, body: str) -> RewardExecutor:
    """Returns OpenRLHF's executor with a reward function of this body."""
    path = folder / "reward.py"
    path.write_text(FUNCTION.format(body=body))
    return RewardExecutor(str(path))


async def responses_of(executor: Any, server: Any = None) -> list[Json]:
    given: Any = server or FakeClient()
    front = Front(given, executor)
    await front.open_batch("b", 7)
    front.expect(1)
    try:
        return await front.generate_responses(
            "2 + 2?", "4", params(max_tokens=8), 64, TOKENIZER, SAMPLES, place=0
        )
    finally:
        front.close_batch()


def failure_of(executor: Any) -> str:
    with pytest.raises(PromptFailed) as caught:
        asyncio.run(responses_of(executor))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_reward_that_fails_once_repeats_the_whole_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = "if not failed: failed.append(1); raise OSError('busy')"
    body = f"{fails}\n    return {{'rewards': 1.0}}"
    server = FakeClient()
    with caplog.at_level(logging.WARNING, "seer_openrlhf"):
        found = asyncio.run(responses_of(executor_with(tmp_path, body), server))
    assert [each["reward"] for each in found] == [1.0] * SAMPLES
    assert [[group["n"] for group in body["groups"]] for body in server.rollouts] == [[2], [2]]
    assert len({body["rollout_id"] for body in server.rollouts}) == 2
    assert "OSError: busy" in caplog.text


def test_a_reward_function_that_always_fails_ends_with_the_prompt_and_the_reason(
    tmp_path: Path,
) -> None:
    line = failure_of(executor_with(tmp_path, "raise KeyError('two\\nlines')"))
    assert line.startswith(f"prompt '2 + 2?' failed {ATTEMPTS} times: RewardError: {tmp_path}")
    assert line.endswith("/reward.py: KeyError: 'two\\nlines'")


@pytest.mark.parametrize("answer", ["None", "{}", "{'reward': 1.0}"])
def test_an_answer_without_rewards_is_a_failure(answer: str, tmp_path: Path) -> None:
    line = failure_of(executor_with(tmp_path, f"return {answer}"))
    assert line.endswith("/reward.py: the answer has no `rewards`")


async def test_a_failure_of_one_sample_is_not_the_reason_of_another(tmp_path: Path) -> None:
    async def execute(executor: RewardExecutor, label: str) -> str:
        outputs = [SimpleNamespace(token_ids=[5], finish_reason="stop", logprobs=None)]

        async def generate(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(outputs=outputs)

        with pytest.raises(RewardError) as caught:
            await executor.execute(
                "p", label, params(), 64, TOKENIZER, SimpleNamespace(generate=generate)
            )
        return str(caught.value)

    executor = executor_with(tmp_path, "assert labels[0] != 'bad', 'one'")
    results = await asyncio.gather(execute(executor, "bad"), execute(executor, "good"))
    assert [text.rpartition(": ")[2] for text in results] == [
        "one",
        "the answer has no `rewards`",
    ]


def test_a_reward_endpoint_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_wait(_: float) -> None:
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr("openrlhf.utils.agent.asyncio.sleep", no_wait)
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/reward"
    line = failure_of(RewardExecutor(url))
    assert f"RewardError: {url}: RuntimeError: Request error for 5 times" in line


class Agent(AgentInstanceBase):  # type: ignore[misc]
    """An agent of one turn, whose step fails `failures` times."""

    failures = 0

    def __init__(self) -> None:
        """Has no state."""

    async def step(self, states: Json, **_: Any) -> Json:
        if type(self).failures:
            type(self).failures -= 1
            raise OSError("no sandbox")
        return {"rewards": torch.tensor(1.0), "environment_feedback": "", "done": True}


@pytest.mark.parametrize("failures", [1, 100])
def test_an_agent_that_raises_repeats_the_group_and_then_ends(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "failures", failures)
    executor = MultiTurnAgentExecutor(Agent)
    if failures == 1:
        found = asyncio.run(responses_of(executor))
        assert [each["reward"] for each in found] == [1.0] * SAMPLES
    else:
        line = failure_of(executor)
        assert line == f"prompt '2 + 2?' failed {ATTEMPTS} times: OSError: no sandbox"


def test_a_group_with_and_without_rewards_is_refused() -> None:
    require_equal([{"reward": None}, {"reward": None}])
    require_equal([{"reward": 0.0}, {"reward": 1.0}])
    with pytest.raises(RewardError, match=r"^1 of 2 responses have no reward$"):
        require_equal([{"reward": None}, {"reward": 1.0}])
