"""Two real steps of GRPO: OpenRLHF, Ray, DeepSpeed, a server and two engines with drafts."""

import re
import sys
from pathlib import Path

import psutil
import pytest
from reasoner import grpo, prompts
from trainings import completed, steps_of

STEPS = 2


@pytest.mark.engines
def test_two_steps_train_and_every_engine_serves_the_new_weights(tmp_path: Path) -> None:
    dataset = tmp_path / "prompts.jsonl"
    run = grpo.Run(dataset=dataset, folder=tmp_path)
    count = STEPS * run.prompts_per_step
    prompts.write(grpo.PROMPTS / "train.jsonl", dataset, count, most_steps=20)
    output = completed(grpo.command(run, Path(sys.executable)))
    steps = steps_of(output)
    assert sorted(steps) == [1, 2]
    for figures in steps.values():
        assert figures["response_length"] > 1
        assert abs(figures["vllm_kl"]) <= 1e-3  # the trainer's log probabilities are the engines'
    (log,) = re.findall(r"seer-sgl serve is ready at .*; its log: (\S+)", output)
    served = re.findall(r"engine (e\d) serves weights (\d)", (grpo.ROOT / log).read_text())
    assert {name for name, version in served if version == "2"} == {"e0", "e1"}
    assert not psutil.Process().children(recursive=True)
