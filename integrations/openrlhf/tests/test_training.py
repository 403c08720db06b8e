"""Two real steps of GRPO: OpenRLHF, Ray, DeepSpeed, a server and two engines with drafts."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from reasoner import grpo, prompts

STEPS = 2
STEP = re.compile(r"Global step (\d+): (\{.*\})")


@pytest.mark.engines
def test_two_steps_train_and_every_engine_serves_the_new_weights(tmp_path: Path) -> None:
    dataset = tmp_path / "prompts.jsonl"
    run = grpo.Run(dataset=dataset, folder=tmp_path)
    count = STEPS * run.prompts_per_step
    prompts.write(grpo.PROMPTS / "train.jsonl", dataset, count, most_steps=20)
    environment = {**os.environ, **grpo.environment()}
    done = subprocess.run(
        grpo.command(run, Path(sys.executable)),
        cwd=grpo.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    steps = {int(number): status for number, status in STEP.findall(output)}
    assert sorted(steps) == [1, 2]
    for figures in map(status_of, steps.values()):
        assert figures["response_length"] > 1
        assert abs(figures["vllm_kl"]) <= 1e-3  # the trainer's log probabilities are the engines'
    (log,) = re.findall(r"seer-sgl serve is ready at .*; its log: (\S+)", output)
    served = re.findall(r"engine (e\d) serves weights (\d)", (grpo.ROOT / log).read_text())
    assert {name for name, version in served if version == "2"} == {"e0", "e1"}
    assert not psutil.Process().children(recursive=True)


def status_of(text: str) -> dict[str, Any]:
    """Returns the figures of a step; the sample's text at their end is left out."""
    figures: dict[str, Any] = ast.literal_eval(text)
    return figures
