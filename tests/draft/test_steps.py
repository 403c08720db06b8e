"""The step-time model is exact at measured sizes and follows an engine that changes."""

import pytest

from seer_sgl.draft.steps import LEAST, StepTimes


def forward(batch: int, width: int) -> float:
    return 0.001 + 0.0002 * batch * width


def step_times() -> StepTimes:
    return StepTimes({(b, w): forward(b, w) for b in (1, 2, 4, 8) for w in (1, 2, 5, 9)})


def test_between_and_beyond_the_measured_batches_it_is_interpolated() -> None:
    times = step_times()
    assert times.predict(4, 5) == pytest.approx(forward(4, 5))
    assert times.predict(6, 9) == pytest.approx(forward(6, 9))
    assert times.predict(16, 2) == pytest.approx(2 * forward(8, 2))


def test_what_every_step_takes_beside_the_forward_pass_is_learnt_from_any_width() -> None:
    times = step_times()
    for _ in range(200):
        times.observe(4, 5, forward(4, 5) + 0.003)
    assert times.predict(4, 5) == pytest.approx(forward(4, 5) + 0.003, rel=0.02)
    assert times.predict(4, 1) == pytest.approx(forward(4, 1) + 0.003, rel=0.02)


def test_a_width_that_turns_out_dearer_than_measured_is_found_out_and_others_are_not_blamed() -> (
    None
):
    times = step_times()
    for _ in range(1000):
        times.observe(4, 1, forward(4, 1) + 0.002)
        times.observe(4, 9, 2 * forward(4, 9) + 0.002)
    assert times.predict(4, 9) == pytest.approx(2 * forward(4, 9) + 0.002, rel=0.1)
    assert times.predict(4, 2) < 1.5 * forward(4, 2) + 0.002


def test_one_step_that_hung_moves_the_estimate_little() -> None:
    times = step_times()
    for _ in range(100):
        times.observe(4, 1, forward(4, 1))
    before = times.predict(4, 1)
    times.observe(4, 1, 100 * before)
    assert times.predict(4, 1) < 1.3 * before


@pytest.mark.parametrize("factor", [5, 30])
def test_a_width_that_was_measured_far_too_long_is_corrected_and_others_are_not_blamed(
    factor: int,
) -> None:
    times = step_times()
    for _ in range(300):
        times.observe(4, 1, forward(4, 1))
        times.observe(4, 9, forward(4, 9) / factor)
    expected = forward(4, 9) * max(1 / factor, LEAST)
    assert times.predict(4, 9) == pytest.approx(expected, rel=0.1)
    assert times.predict(4, 1) == pytest.approx(forward(4, 1), rel=0.1)
