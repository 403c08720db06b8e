"""A training that is killed, and restarted from its checkpoint against the same server."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from reasoner import grpo, prompts
from seer_openrlhf.flags import SeerFlags
from seer_openrlhf.served import served
from trainings import Training, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long]
KILLED_AFTER, STEPS = 3, 6


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with two engines; the file's paths are relative to the checkout."""
    monkeypatch.chdir(grpo.ROOT)
    for name, value in grpo.environment().items():
        monkeypatch.setenv(name, value)
    config, command = grpo.OWN_SERVER[1::2]
    with served(SeerFlags(config=config, command=command, timeout_s=600)) as found:
        yield found


def start(run: grpo.Run, url: str, *flags: str) -> Training:
    command = grpo.command(run, Path(sys.executable), ("--seer.url", url))
    return Training([*command, "--ckpt.save_steps", "1", *flags])


def kill_after_step(training: Training, step: int) -> None:
    """Kills the command in the middle of what follows a step; Ray's processes end by themselves."""
    training.wait_for(rf"Global step ({step}): \{{")
    family = psutil.Process(training.process.pid).children(recursive=True)
    assert family
    training.process.kill()
    training.end()
    psutil.wait_procs(family)


def test_a_training_that_was_killed_continues_with_its_own_weights(
    url: str, tmp_path: Path
) -> None:
    run = replace(grpo.Run(dataset=tmp_path / "prompts.jsonl", folder=tmp_path), learning_rate=1e-3)
    count = STEPS * run.prompts_per_step
    prompts.write(grpo.PROMPTS / "train.jsonl", run.dataset, count, most_steps=20)
    kill_after_step(start(run, url), KILLED_AFTER)
    again = start(run, url, "--ckpt.load_enable")
    assert again.end() == 0, again.output[-3000:]
    steps = steps_of(again.output)
    first = min(steps)
    # The checkpoint of the last step may not have been complete; the server has its weights.
    assert first in (KILLED_AFTER, KILLED_AFTER + 1), sorted(steps)
    assert max(steps) == STEPS
    for step, figures in steps.items():
        assert abs(figures["vllm_kl"]) <= 1e-3, (step, figures["vllm_kl"])
    assert "checkpoint_states: " in again.output
