"""The comparison of log probabilities: noise passes, other weights do not."""

import random

import pytest
from seer_openrlhf.probe import first_ids, position, problem, tolerance

RANDOM = random.Random(1)
NEW = [-RANDOM.expovariate(1.0) for _ in range(255)]


def noisy(values: list[float], deviation: float) -> list[float]:
    """Returns the values with numerical noise, the same for each deviation."""
    noise = random.Random(2)
    return [value + noise.gauss(0.0, deviation) for value in values]


@pytest.mark.parametrize("deviation", [0.0, 0.003, 0.05])
def test_numerical_noise_is_no_problem(deviation: float) -> None:
    assert problem(noisy(NEW, deviation), NEW) is None


def test_other_weights_are_found_by_their_size() -> None:
    engine = noisy(NEW, 2 * tolerance(NEW))
    why = problem(engine, NEW)
    assert why is not None and why.startswith("its log probabilities differ from the trainer's")


def test_unlikely_tokens_have_more_noise() -> None:
    unlikely = [14.0 * value for value in NEW]
    engine = noisy(unlikely, 2 * tolerance(NEW))
    assert problem(engine, unlikely) is None


def test_not_a_number_is_a_problem() -> None:
    assert problem([float("nan")] * len(NEW), NEW) is not None


def test_another_number_of_tokens_is_a_problem() -> None:
    assert problem(NEW[1:], NEW) == "it returned 254 log probabilities, not 255"


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_a_step_far_below_the_tolerance_shows_which_weights_an_engine_has(noise: float) -> None:
    old = noisy(NEW, 0.01)
    updated, skipped = ([a + RANDOM.gauss(0.0, noise) for a in of] for of in (NEW, old))
    assert problem(updated, NEW, old) is None
    why = problem(skipped, NEW, old)
    assert why is not None
    assert why.startswith("its log probabilities are those of the previous weights (place ")


def test_a_step_below_the_noise_decides_nothing() -> None:
    old = noisy(NEW, 0.0001)
    engine = [value + RANDOM.gauss(0.0, 0.003) for value in old]
    assert position(engine, NEW, old) is None
    assert problem(engine, NEW, old) is None


def test_noise_along_a_small_step_is_no_sign_of_old_weights() -> None:
    old = noisy(NEW, 0.003)
    along = [b - 0.6 * (b - a) for a, b in zip(old, NEW, strict=True)]
    assert problem([value + RANDOM.gauss(0.0, 0.002) for value in along], NEW, old) is None


def test_one_token_on_which_only_the_trainer_moves_decides_nothing() -> None:
    old = noisy(NEW, 0.006)
    engine = [value + RANDOM.gauss(0.0, 0.003) for value in NEW]
    new = [NEW[0] + 1.0, *NEW[1:]]
    assert problem(engine, new, old) is None


def test_equal_weights_before_and_after_decide_nothing() -> None:
    assert problem(NEW, NEW, NEW) is None


def test_the_first_tokens_are_always_the_same_and_in_the_vocabulary() -> None:
    assert first_ids(64) == first_ids(64)
    assert set(first_ids(64)) <= set(range(64))
