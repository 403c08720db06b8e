"""A real step whose rewards are slow: they run while other samples are still being generated."""

import json
import sys
from pathlib import Path

import pytest
from reasoner import grpo, prompts
from trainings import completed, steps_of

REWARD_S = 2.0
REWARD = """
import json, sys, time
sys.path.insert(0, {folder!r})
import reward

def reward_func(*given):
    began = time.time()
    time.sleep({seconds})
    found = reward.reward_func(*given)
    with open({log!r}, "a") as log:
        log.write(json.dumps([began, time.time()]) + "\\n")
    return found
"""


@pytest.mark.engines
@pytest.mark.long
def test_slow_rewards_begin_before_the_last_sample_ends(tmp_path: Path) -> None:
    dataset, log = tmp_path / "prompts.jsonl", tmp_path / "rewards"
    slow = tmp_path / "slow.py"
    slow.write_text(REWARD.format(folder=str(grpo.HERE), seconds=REWARD_S, log=str(log)))
    run = grpo.Run(dataset=dataset, folder=tmp_path)
    prompts.write(grpo.PROMPTS / "train.jsonl", dataset, run.prompts_per_step, most_steps=60)
    command = grpo.command(run, Path(sys.executable))
    (figures,) = steps_of(completed([*command, "--reward.remote_url", str(slow)])).values()
    times = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(times) == run.prompts_per_step * run.samples_per_prompt
    first, end = min(began for began, _ in times), max(ended for _, ended in times)
    last_sample = end - figures["seer_reward_wait_s"]
    print(f"rewards began {last_sample - first:.1f} s before the last sample ended")
    print({name: value for name, value in figures.items() if name.startswith("seer_")})
    assert first < last_sample
