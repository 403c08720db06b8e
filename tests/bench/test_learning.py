"""What a training run has learned, from its log and its answers."""

import math

from bench.learning import KEPT, gain, held_out, steps_of
from bench.reasoner.evaluate import Sample

FIGURES = dict.fromkeys(KEPT, 0.5) | {"timing/other": 1.0, "policy_loss": -0.1}


def sample(group: str, answer: str, finish: str = "stop") -> Sample:
    text = f"take 0 9 2 . </think> answer {answer}"
    return Sample(group, (1, 2, 3), text, finish, 2)


def test_the_steps_of_a_log_are_found_among_other_lines() -> None:
    line = "(PPOTrainer pid=3) INFO ppo_trainer.py:551] Global step {}: {}\n"
    log = "loading\n" + line.format(1, FIGURES) + "Train epoch 100%\n" + line.format(2, FIGURES)
    assert steps_of(log) == [{"step": step, **dict.fromkeys(KEPT, 0.5)} for step in (1, 2)]


def test_the_gain_of_each_prompt_gives_the_standard_error() -> None:
    gained = gain({"a": 0.5, "b": 0.25, "c": 1.0}, {"a": 1.0, "b": 0.5, "c": 1.0})
    assert gained["mean"] == 0.25
    assert math.isclose(gained["standard_error"], 0.25 / math.sqrt(3))


def test_right_answers_are_counted_by_prompt() -> None:
    found = held_out([sample("a", "2 0 0"), sample("a", "3 0 0"), sample("b", "2 0 0", "length")])
    assert found["right_by_prompt"] == {"a": 0.5, "b": 1.0}
    assert math.isclose(found["right"], 2 / 3) and math.isclose(found["finished"], 2 / 3)
    assert (found["samples"], found["length_mean"]) == (3, 3.0)
