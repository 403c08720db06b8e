"""A training whose server is killed in a batch and restarted continues: real engines."""

import contextlib
import json
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from reasoner import grpo, prompts
from seer_openrlhf.flags import SeerFlags
from seer_openrlhf.served import served
from trainings import Training, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(1200)]
Json = dict[str, Any]
STEPS, KILLED_IN = 4, 3  # the weights have changed by then: the first step has a rate of 0
RATE = 3e-3  # one step changes log probabilities by much more than the noise of bf16
READY = r"seer-sgl serve is ready at (\S+); its log: \S+"
AGAIN = re.compile(r"seer-sgl serve is being restarted; its log: (\S+)")
RESTORED = re.compile(
    r"(\d+) of (\d+) samples are restored, (\d+) requests continue, (\d+) tokens in all"
)
REWARD = """
import json, sys
sys.path.insert(0, {folder!r})
import reward

def reward_func(queries, prompts, labels):
    with open({log!r}, "a") as log:
        log.writelines(json.dumps(prompt) + "\\n" for prompt in prompts)
    return reward.reward_func(queries, prompts, labels)
"""


def wait_for_batch(url: str, training: Training) -> Json:
    """Returns the rollout of the batch in question, in its middle."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        assert training.process.poll() is None, training.output[-3000:]
        with opener.open(f"{url}/rollouts") as answer:
            rollouts = json.load(answer)["rollouts"]
        for rollout in rollouts:
            samples = rollout["samples"]
            if rollout["rollout_id"].endswith(f"-{KILLED_IN - 1}.1") and samples["finished"] >= 4:
                assert samples["finished"] < samples["total"], rollout
                found: Json = rollout
                return found
        time.sleep(0.02)


def kill_server(url: str) -> None:
    """Kills the server that listens at `url`, and nothing else."""
    port = url.rpartition(":")[2]
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if "serve" in words and port in words:
                return process.kill()
    raise AssertionError(f"no server at {url}")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server with a journal; its chunks are short, so that requests end between two of them."""
    monkeypatch.chdir(grpo.ROOT)
    for name, value in grpo.environment().items():
        monkeypatch.setenv(name, value)
    text = grpo.ENGINES.read_text().replace("chunk_tokens: 256", "chunk_tokens: 64")
    file = tmp_path / "engines.yaml"
    file.write_text(f"{text}\nrollout:\n  journal: {tmp_path / 'journals'}\n")
    return file


@contextlib.contextmanager
def own_server(config: Path) -> Iterator[tuple[str, ...]]:
    """The flags of a training that starts its server, and restarts it."""
    yield ("--seer.config", str(config), "--seer.command", grpo.SEER)


@contextlib.contextmanager
def server_elsewhere(config: Path) -> Iterator[tuple[str, ...]]:
    """The flags of a training at a server that this process starts, and restarts."""
    flags = SeerFlags(config=str(config), command=grpo.SEER, timeout_s=600)
    folder = config.with_name("sync")
    with served(flags) as url:
        yield ("--seer.url", url, "--seer.sync", "disk", "--seer.sync_dir", str(folder))


@pytest.mark.parametrize("server", [own_server, server_elsewhere])
def test_a_training_continues_when_its_server_was_killed(
    server: Any, config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rewarded, reward = tmp_path / "rewarded", tmp_path / "logged.py"
    reward.write_text(REWARD.format(folder=str(grpo.HERE), log=str(rewarded)))
    dataset = tmp_path / "prompts.jsonl"
    run = grpo.Run(dataset=dataset, folder=tmp_path, learning_rate=RATE)
    count = STEPS * run.prompts_per_step
    prompts.write(grpo.PROMPTS / "train.jsonl", dataset, count, most_steps=40)
    with server(config) as seer:
        command = grpo.command(run, Path(sys.executable), seer)
        training = Training([*command, "--reward.remote_url", str(reward)])
        own = server is own_server
        url = training.wait_for(READY) if own else seer[1]
        at_kill = wait_for_batch(url, training)
        kill_server(url)
        assert training.end() == 0, training.output[-5000:]
        steps = steps_of(training.output)
        output = training.output + capfd.readouterr().err
    print(at_kill["samples"], *re.findall(r".*\b(?:again|restored|waiting)\b.*", output), sep="\n")
    assert output.count("seer-sgl serve ended by SIGKILL") == 1

    # The samples: each once, by the weights of the step before.
    assert sorted(steps) == list(range(1, STEPS + 1))
    for step, figures in steps.items():
        assert abs(figures["vllm_kl"]) <= 1e-3, (step, figures)
        assert figures["seer_oldest_version"] == figures["seer_newest_version"] == step - 1
        assert figures["seer_repeated_groups"] == 0
        assert (figures["seer_restored_tokens"] > 0) == (step == KILLED_IN)
    asked = Counter(json.loads(line) for line in rewarded.read_text().splitlines())
    assert sum(asked.values()) == count * run.samples_per_prompt
    assert {times % run.samples_per_prompt for times in asked.values()} == {0}

    # The server: first the weights, then the journal.
    (log,) = AGAIN.findall(output)
    lines = (grpo.ROOT / log).read_text()
    restored = RESTORED.search(lines)
    assert restored is not None
    finished, total, going_on, tokens = map(int, restored.groups())
    assert total == run.prompts_per_step * run.samples_per_prompt
    assert finished < total  # what ended just before the kill may be missing
    assert going_on > 0
    assert tokens == steps[KILLED_IN]["seer_restored_tokens"]
    assert lines.index(f"the engines serve new weights {KILLED_IN - 1}") < restored.start()
    assert list((tmp_path / "journals").iterdir()) == []
    if own:
        assert not psutil.Process().children(recursive=True)
