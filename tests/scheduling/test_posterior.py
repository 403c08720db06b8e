"""The posterior of a group's lengths."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.scheduling.posterior import SPREADS, LengthPosterior, Spread

LIMIT = 40_000
lengths = st.integers(1, LIMIT)


def of(*ended: int, reached: int = 0, spread: Spread | None = None) -> LengthPosterior:
    posterior = LengthPosterior(LIMIT, spread or Spread())
    for index, length in enumerate(ended):
        posterior.ended(index, length)
    if reached:
        posterior.reached(len(ended), reached)
    return posterior


def test_before_the_first_response_the_limit_is_possible() -> None:
    assert of().possible(0, 0.001) == LIMIT


@given(st.lists(lengths, max_size=6), lengths, st.floats(0.0005, 0.5))
def test_what_is_possible_lies_between_the_tokens_so_far_and_the_limit(
    ended: list[int], tokens: int, chance: float
) -> None:
    assert tokens <= of(*ended, reached=tokens).possible(tokens, chance) <= LIMIT


@given(st.lists(lengths, min_size=1, max_size=6))
def test_a_rarer_length_is_a_longer_one(ended: list[int]) -> None:
    posterior = of(*ended)
    possible = [posterior.possible(0, chance) for chance in (0.5, 0.1, 0.01, 0.001)]
    assert possible == sorted(possible)


def test_a_response_that_has_ended_no_longer_counts_as_one_that_runs() -> None:
    watched, seen_at_its_end = (LengthPosterior(LIMIT, Spread()) for _ in range(2))
    for tokens in (500, 1000, 1500):
        watched.reached(0, tokens)
    for posterior in (watched, seen_at_its_end):
        posterior.ended(0, 1600)
    for chance in (0.5, 0.1, 0.001):
        assert watched.possible(0, chance) == seen_at_its_end.possible(0, chance)


def test_shorter_siblings_make_long_ones_less_likely() -> None:
    possible = [of(*[length] * 3).possible(0, 0.001) for length in (100, 1_000, 4_000)]
    assert possible == sorted(set(possible))
    assert possible[-1] < LIMIT


def test_a_response_that_runs_on_makes_its_siblings_longer() -> None:
    possible = [of(500, 600, reached=tokens).possible(0, 0.01) for tokens in (100, 1_000, 8_000)]
    assert possible == sorted(set(possible))


@settings(max_examples=50)
@given(st.permutations([("end", 0, 700), ("end", 1, 900), ("reach", 2, 300), ("reach", 3, 1_200)]))
def test_the_order_of_what_is_seen_does_not_matter(seen: list[tuple[str, int, int]]) -> None:
    posterior = of()
    for kind, index, tokens in seen:
        if kind == "reach":
            posterior.reached(index, tokens // 2)
            posterior.reached(index, tokens)
        else:
            posterior.reached(index, tokens // 3)
            posterior.ended(index, tokens)
    plain = of(700, 900)
    plain.reached(2, 300)
    plain.reached(3, 1_200)
    assert posterior.possible(300, 0.001) == plain.possible(300, 0.001)
    assert np.allclose(posterior._weights, plain._weights)


def test_the_median_that_it_predicts_is_that_of_the_lengths() -> None:
    random = np.random.default_rng(1)
    drawn = np.exp(random.normal(np.log(3_000), 0.45, 400)).astype(int)
    posterior = of(*(int(length) for length in drawn))
    assert posterior.possible(0, 0.5) == pytest.approx(3_000, rel=0.1)
    assert posterior.possible(0, 0.01) == pytest.approx(np.quantile(drawn, 0.99), rel=0.25)


@pytest.mark.parametrize("true", [0.15, 0.45, 1.1])
def test_the_spread_within_groups_is_learned(true: float) -> None:
    random, spread = np.random.default_rng(2), Spread()
    assert SPREADS[spread.chosen] == 0.45
    for mean in random.normal(np.log(2_000), 0.5, 60):
        drawn = np.exp(random.normal(mean, true, 4))
        group = LengthPosterior(LIMIT, spread)
        for index, length in enumerate(drawn):
            group.ended(index, int(length) + 1)
        group.close()
    assert SPREADS[spread.chosen] == true


def test_the_spread_is_learned_from_what_runs_too() -> None:
    """What has ended is short, and looks alike; that the others continue shows that it is not."""
    spread = Spread()
    groups = [of(500, 550, spread=spread) for _ in range(20)]
    narrow = SPREADS[spread.chosen]
    for group, index in itertools.product(groups, range(2, 8)):
        group.reached(index, 4_000)
    assert SPREADS[spread.chosen] > narrow


def test_another_spread_is_learned_when_the_lengths_change() -> None:
    random, spread = np.random.default_rng(3), Spread()
    for true in (0.2, 0.8):
        for _ in range(400):
            group = LengthPosterior(LIMIT, spread)
            for index in range(4):
                group.ended(index, int(np.exp(random.normal(np.log(2_000), true))) + 1)
            group.close()
        assert SPREADS[spread.chosen] == true
