"""Training and generation at the same time: ten real steps, with and without partial rollout."""

import sys
from pathlib import Path

import pytest
from reasoner import grpo, prompts
from trainings import completed, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long]
STEPS = 10


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_samples_say_which_weights_their_tokens_are_from(partial: bool, tmp_path: Path) -> None:
    run = grpo.Run(dataset=tmp_path / "prompts.jsonl", folder=tmp_path, samples_per_prompt=8)
    prompts.write(
        grpo.PROMPTS / "train.jsonl", run.dataset, STEPS * run.prompts_per_step, most_steps=60
    )
    flags = ["--train.async_enable", *(["--train.partial_rollout_enable"] if partial else [])]
    steps = steps_of(completed([*grpo.command(run, Path(sys.executable)), *flags]))
    assert sorted(steps) == list(range(1, STEPS + 1))
    for step, figures in steps.items():
        # Step n trains what weights of step n - 1 at the newest have sampled, and n - 2 before.
        assert max(0, step - 2) <= figures["seer_oldest_version"] <= figures["seer_newest_version"]
        assert figures["seer_newest_version"] <= step - 1
        assert abs(figures["vllm_kl"]) <= 1e-3
        if not partial:
            assert figures["seer_weight_versions"] == 1
    changed = [step for step in steps.values() if step["seer_weight_versions"] > 1]
    assert bool(changed) == partial
    assert all(step["seer_older_tokens"] and step["seer_newest_tokens"] for step in changed)
