"""OpenRLHF's executors run behind the front unmodified: rewards, and agents of several turns."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from json import dumps, loads
from pathlib import Path
from typing import Any

import pytest
from fake_fleet import FakeClient, logprob
from sampling import TOKENIZER, Setup, sampling
from seer_openrlhf.front import make_executor

REWARD = """
def reward_func(queries, prompts, labels):
    right = float(int(labels[0]) % 2)
    logs = {"letters": float(len(queries[0]))}
    return {"rewards": right, "scores": right / 2, "extra_logs": logs}
"""
# Two questions; the answer to the first is a part of the second one's prompt.
AGENT = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class Instance(AgentInstanceBase):
    def __init__(self):
        self.turns = []

    async def step(self, states):
        self.turns.append(states["action_text"])
        done = len(self.turns) == 2
        return {
            "rewards": torch.tensor(1.0), "scores": torch.tensor(0.5),
            "environment_feedback": "" if done else " again:", "done": done,
            "extra_logs": {"turns": torch.tensor(float(len(self.turns)))},
        }

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Instance)
"""
# It asks twice with the parameters as it gets them.
PLAIN = """
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine,
                      images=None):
        ids, ranges = hf_tokenizer(prompt)["input_ids"], []
        for _ in range(2):
            found = await llm_engine.generate(ids, sampling_params)
            action = found.outputs[0].token_ids
            ranges.append((len(ids), len(ids) + len(action)))
            ids = ids + action
        return {
            "prompt": prompt, "label": label, "observation_tokens": ids, "action_ranges": ranges,
            "rollout_log_probs": None, "reward": 1.0,
        }
"""


@pytest.fixture
def reward_model() -> Iterator[str]:
    """The URL of a reward model: the reward is the length of the prompt."""

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = dumps({"rewards": float(len(asked["prompts"][0]))}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = HTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/reward"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reward_function_gives_rewards_scores_and_logs(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(REWARD)
    with sampling(Setup(executor=make_executor(None, str(path)))) as run:
        samples = run.batch()
    assert [sample.rewards.item() for sample in samples] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [sample.scores.item() for sample in samples[:4]] == [0, 0, 0.5, 0.5]
    for sample in samples:
        assert sample.info["reward"] == sample.rewards
        assert sample.info["letters"].item() == len(TOKENIZER.decode(sample.sequences[0]))


def test_a_reward_model_is_asked_over_http(reward_model: str) -> None:
    prompts = ["a", "bb", "ccc", "dddd"]
    with sampling(Setup(prompts=prompts, executor=make_executor(None, reward_model))) as run:
        assert [sample.rewards.item() for sample in run.batch()[::2]] == [1, 2, 3, 4]


def test_without_rewards_every_sample_is_without_them() -> None:
    with sampling(Setup(executor=make_executor(None, None))) as run:
        samples = run.batch()
    assert all(sample.rewards is None and sample.scores is None for sample in samples)
    assert all("reward" not in sample.info for sample in samples)


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return make_executor(str(path), None)


def test_later_turns_of_an_agent_are_in_the_group_and_the_session_of_its_sample(agent: Any) -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet, executor=agent, batch_size=2)) as run:
        samples = run.batch()
    (rollout,) = fleet.rollouts
    assert [(group["id"], group["n"]) for group in rollout["groups"]] == [("0", 2), ("1", 2)]
    batch = rollout["rollout_id"].removesuffix(".1")
    assert {(body["group_id"], body["session_id"]) for body in fleet.generated} == {
        (f"{batch}.{group}", f"{batch}.{group}.{index}") for group in (0, 1) for index in (0, 1)
    }
    seeds = {body["sampling_params"]["sampling_seed"] for body in fleet.generated}
    assert len(seeds) == len(fleet.generated) == 4
    for sample in samples:
        assert (sample.rewards.item(), sample.scores.item()) == (2.0, 0.5)
        assert sample.info["turns"].item() == 2


def test_an_agents_feedback_is_no_action_and_has_no_log_probabilities(agent: Any) -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet, executor=agent, batch_size=1, n=1)) as run:
        (sample,) = run.batch()
    tokens, mask = sample.sequences[0].tolist(), [0, *sample.action_mask[0].tolist()]
    asked = fleet.generated[0]["input_ids"]
    assert tokens[: len(asked)] == asked and asked[-7:] == list(b" again:")
    first = range(8, len(asked) - 7)
    second = range(len(asked), len(tokens))
    assert [place for place, action in enumerate(mask) if action] == [*first, *second]
    expected = [logprob(t) if action else 0.0 for t, action in zip(tokens, mask, strict=True)]
    assert sample.rollout_log_probs[0].tolist() == pytest.approx(expected[1:])


def test_the_figures_of_a_sample_are_of_all_its_turns(agent: Any) -> None:
    with sampling(Setup(executor=agent, batch_size=1, n=1)) as run:
        (sample,) = run.batch()
    actions = sample.action_mask.sum().item()
    assert sample.info["seer_newest_tokens"].item() == actions
    assert (
        sample.info["seer_migrations"].item() == 1
    )  # in the rollout; the second turn had one engine
    assert 1.5 < sample.info["seer_accept_length"].item() < 2.0


@pytest.mark.parametrize(("limit", "first"), [(None, 16), (12, 12), (99, 16)])
def test_a_response_of_an_agent_ends_with_the_context(
    limit: int | None, first: int, tmp_path: Path
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(PLAIN)
    fleet = FakeClient()
    executor = make_executor(str(path), None)
    with sampling(Setup(fleet=fleet, executor=executor, batch_size=1, n=1)) as run:
        run.batch(max_new_tokens=limit, max_len=24)  # the prompt has 8 tokens
    (group,), (later,) = fleet.rollouts[0]["groups"], fleet.generated
    assert group["sampling"]["max_new_tokens"] == first
    room = max(1, 24 - len(later["input_ids"]))
    assert later["sampling_params"]["max_new_tokens"] == min(room, limit or room)


def test_a_repeated_agent_asks_the_same_again(agent: Any) -> None:
    def asked(fleet: FakeClient) -> list[Any]:
        with sampling(Setup(fleet=fleet, executor=agent, batch_size=1, n=1)) as run:
            run.batch()
        return [(body["input_ids"], body["sampling_params"]) for body in fleet.generated]

    assert asked(FakeClient()) == asked(FakeClient())
