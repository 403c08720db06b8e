"""Training and generation at the same time: ten real steps, with and without partial rollout."""

import json
import re
import sys
from pathlib import Path

import pytest
from reasoner import grpo, prompts
from trainings import completed, steps_of

pytestmark = [pytest.mark.engines, pytest.mark.long]
STEPS = 10
RATE = 1e-3  # a step changes log probabilities by more than the noise of bf16
COMPARED = Path(__file__).with_name("current_command.py")


def difference(output: str, tokens: str) -> tuple[float, int]:
    """Returns the mean difference of log probabilities over "current" or "older" tokens.

    It is that of all steps: the current tokens of one step may be few. With their number.
    """
    lines = [json.loads(each) for each in re.findall(r"CURRENT (\{.*\})", output)]
    assert sorted(each["step"] for each in lines) == list(range(1, STEPS + 1))
    total, count = (sum(each[tokens][part] for each in lines) for part in (0, 1))
    print(tokens, total / max(count, 1), count)  # shown by pytest -s
    return total / max(count, 1), count


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_samples_say_which_weights_their_tokens_are_from(partial: bool, tmp_path: Path) -> None:
    run = grpo.Run(
        dataset=tmp_path / "prompts.jsonl",
        folder=tmp_path,
        samples_per_prompt=8,
        learning_rate=RATE,
    )
    prompts.write(
        grpo.PROMPTS / "train.jsonl", run.dataset, STEPS * run.prompts_per_step, most_steps=60
    )
    flags = ["--train.async_enable", *(["--train.partial_rollout_enable"] if partial else [])]
    command = grpo.command(run, Path(sys.executable), program=[str(COMPARED)])
    output = completed([*command, *flags])
    steps = steps_of(output)
    assert sorted(steps) == list(range(1, STEPS + 1))
    for step, figures in steps.items():
        # Step n trains what weights of step n - 1 at the newest have sampled, and n - 2 before.
        assert max(0, step - 2) <= figures["seer_oldest_version"] <= figures["seer_newest_version"]
        assert figures["seer_newest_version"] <= step - 1
        if not partial:
            assert figures["seer_weight_versions"] == 1
    mean, count = difference(output, "current")
    assert count and abs(mean) <= 1e-3
    assert difference(output, "older")[1]
    changed = [step for step in steps.values() if step["seer_weight_versions"] > 1]
    assert bool(changed) == partial
    assert all(step["seer_older_tokens"] and step["seer_newest_tokens"] for step in changed)
