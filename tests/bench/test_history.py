"""The updates of weights between two epochs, and the figures of drafts from the earlier one."""

import math

import pytest

from bench.reasoner.batches import TOKENS_AT_ONCE, Graded, advantages, batches, rows_of


def group(name: str, *rewards: float, tokens: int = 4) -> list[Graded]:
    return [Graded(name, [1], [2] * tokens, reward) for reward in rewards]


def test_advantages_are_in_the_groups_standard_deviations() -> None:
    assert advantages(group("a", 1.0, 0.0, 0.0, 0.0)) == pytest.approx(
        [math.sqrt(3)] + [-1 / math.sqrt(3)] * 3
    )
    assert advantages(group("a", 1.0, 1.0)) == [0.0, 0.0]


def test_every_update_takes_other_groups_until_all_have_been_taken() -> None:
    samples = [sample for i in range(6) for sample in group(f"g{i}", 1.0, 0.0)]
    taken = [{sample.group for sample in batch} for batch, _ in batches(samples, 3)]
    assert [len(names) for names in taken] == [4, 4, 4]
    assert taken[0] | taken[1] == {sample.group for sample in samples}
    assert len(taken[0] & taken[1]) == 2  # the round after all groups has begun
    assert all(len(batch) == len(weights) == 8 for batch, weights in batches(samples, 2))


def test_rows_keep_the_tokens_bounded_and_every_sample_once() -> None:
    samples = [sample for i in range(5) for sample in group("g", 0.0, tokens=1000 * (i + 1))]
    rows = list(rows_of(samples))
    assert sorted(i for row in rows for i in row) == list(range(5))
    for row in rows:
        longest = max(1 + len(samples[i].response_ids) for i in row)
        assert len(row) == 1 or longest * len(row) <= TOKENS_AT_ONCE
    assert any(len(row) > 1 for row in rows)
