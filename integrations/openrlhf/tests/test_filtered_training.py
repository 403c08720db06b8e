"""Dynamic filtering with prompts in advance, and evaluations between the steps, on real engines."""

import ast
import re
import sys
from pathlib import Path

import pytest
from reasoner import grpo, prompts
from trainings import completed, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long]
PROMPTS, EVALUATED, EVALUATIONS = 24, 4, 2
EVALUATION = re.compile(r"Evaluation completed in .*, global_step (\d+), eval_metrics: (\{.*\})")


def test_filtered_steps_and_evaluations_alternate(tmp_path: Path) -> None:
    run = grpo.Run(dataset=tmp_path / "prompts.jsonl", folder=tmp_path)
    held_out = tmp_path / "held_out.jsonl"
    prompts.write(grpo.PROMPTS / "train.jsonl", run.dataset, PROMPTS, most_steps=60)
    prompts.write(grpo.PROMPTS / "held_out.jsonl", held_out, EVALUATED, most_steps=60)
    flags = {
        "eval.dataset": held_out,
        "eval.n_samples_per_prompt": EVALUATIONS,
        "eval.steps": 1,
        "eval.temperature": 0.8,
    }
    words = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    seer = (*grpo.OWN_SERVER, "--seer.over_sampling", "2")
    command = grpo.command(run, Path(sys.executable), seer)
    output = completed([*command, *words, "--algo.dynamic_filtering_enable"])
    steps = steps_of(output)
    assert len(steps) >= 2 and sorted(steps) == list(range(1, len(steps) + 1))
    for figures in steps.values():
        assert 0 < figures["reward"] < 1, "groups of equal rewards are filtered out"
        assert abs(figures["vllm_kl"]) <= 1e-3
    found = {int(step): ast.literal_eval(text) for step, text in EVALUATION.findall(output)}
    assert sorted(found) == sorted(steps)
    assert {each["eval_num_samples"] for each in found.values()} == {EVALUATED * EVALUATIONS}
