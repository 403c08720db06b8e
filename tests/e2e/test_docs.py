"""The Python code of the pages runs on real servers and does what its page states.

The pages start small fleets of their own with `load_ready`. Here the same code joins the pair of
servers of the session, and its rollouts have fewer and shorter responses.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seer_sgl
from seer_sgl import Rollout, cli, load_ready
from seer_sgl.config import Config
from tests.docs.commands import commands
from tests.docs.scripts import (
    DRIVER,
    FILES,
    FLEET,
    IDENTITY,
    LANDING,
    OBSERVERS,
    ROLLOUT,
    TRAINING,
    TRAJECTORIES,
    run,
    script,
)
from tests.e2e.conftest import HELD_OUT
from tests.e2e.rig import WEIGHTS, Rig

pytestmark = pytest.mark.shared_engines

PROMPTS, SAMPLES, LONGEST = 3, 2, 600
Ready = Callable[..., Config]


@pytest.fixture
def overrides(engine_urls: list[str]) -> list[str]:
    """The changes of a ready config that make it join the pair of servers."""
    return [
        f"engines={{launch: external, urls: {engine_urls}}}",
        "kv_pool={}",
        "draft={}",
        f"rollout.max_prompts={PROMPTS}",
        f"rollout.n_samples_per_prompt={SAMPLES}",
        f"sampling.max_response_len={LONGEST}",
    ]


@pytest.fixture(autouse=True)
def ready(overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ready:
    """`load_ready` for the code of the pages, in a folder with a prompts file."""

    def joined(name: str, changes: tuple[str, ...] = ()) -> Config:
        return load_ready(name, [*changes, *overrides])

    monkeypatch.setattr(seer_sgl, "load_ready", joined)
    monkeypatch.chdir(tmp_path)
    lines = HELD_OUT.read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join(lines[:PROMPTS]))
    return joined


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_loop_of_the_landing_page_trains_on_every_sample(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[tuple[int, int, int]] = []

    def train_on(*arrays: Any) -> None:
        prompt, response, log_probs = map(len, arrays)
        seen.append((prompt, response, log_probs))

    run(LANDING, {"train_on": train_on})
    assert len(seen) == PROMPTS * SAMPLES
    assert all(prompt > 0 and response == probs > 0 for prompt, response, probs in seen)
    assert float(printed(capsys)[-1]) > 0


def test_a_rollout_yields_groups_of_samples(capsys: pytest.CaptureFixture[str]) -> None:
    run(ROLLOUT)
    *lines, throughput = printed(capsys)
    indices = [int(line.split()[1]) for line in lines]
    assert indices == [*range(SAMPLES)] * PROMPTS
    assert {line.split()[3] for line in lines} <= {"stop", "length"}
    assert float(throughput) > 0


def test_a_function_generates_two_turns_per_sample(capsys: pytest.CaptureFixture[str]) -> None:
    run(TRAJECTORIES)
    lines = printed(capsys)
    assert len(lines) == PROMPTS
    for line in lines:
        lengths = json.loads(line.partition(" ")[2])
        assert len(lengths) == SAMPLES
        assert all(length > 0 for length in lengths)


def test_a_training_loop_samples_from_the_weights_of_its_step(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    with rig.weights_given_back():
        run(TRAINING)
    lines = printed(capsys)
    assert len(lines) == 2 * PROMPTS
    for line in lines:
        version = WEIGHTS if line.startswith("0") else "step-1"
        assert line.endswith(str([version] * SAMPLES))


def test_groups_that_a_caller_makes_are_yielded_by_the_driver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(DRIVER)
    lines = printed(capsys)
    assert lines
    assert all(line.endswith(" done") for line in lines)


def test_an_observer_sees_each_sample_before_its_group_is_complete(
    ready: Ready, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = run(OBSERVERS)["Rewards"]

    async def groups() -> int:
        async with Rollout(ready("cpu")) as rollout:
            prompts = rollout.read_prompts("prompts.jsonl")
            async for _ in rollout.run(prompts, [rewards()]):
                return len(printed(capsys))
        return 0

    assert asyncio.run(groups()) >= SAMPLES


def test_two_configs_share_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    run(FLEET)
    lines = [line.split() for line in printed(capsys)]
    assert [policy for policy, _ in lines] == ["seer", "fcfs"]
    assert all(float(seconds) > 0 for _, seconds in lines)


def test_rollouts_of_two_commands_are_compared_and_read_as_the_pages_do(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [word for change in overrides for word in ("--set", change)]
    for out in ("out/seer", "out/whole"):
        words = next(each.words for each in commands() if out in each.words)
        monkeypatch.setattr(sys, "argv", [*words, *changes])
        cli.main()
    capsys.readouterr()
    run(IDENTITY)
    total = PROMPTS * SAMPLES
    assert printed(capsys) == [f"{total} of {total} identical"]
    Path("out/seer").rename("out/first")
    monkeypatch.setattr(sys, "argv", ["-", *script(FILES).arguments])
    run(FILES)
    assert {line.split()[1] for line in printed(capsys)} == set(map(str, range(SAMPLES)))
