"""Backoff and quarantine of processes that end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.processes.restarts import (
    MOST_FAILURES,
    STABLE_S,
    TOGETHER_S,
    Incidents,
    Restarts,
)
from seer_sgl.timing import DEFAULT


def pause_of(restarts: Restarts, at: float) -> float:
    """Returns the seconds until it is due, in steps of an eighth."""
    for eighths in range(10_000):
        if restarts.due(at + eighths / 8):
            return eighths / 8
        if restarts.quarantine is not None:
            break
    return -1.0


def test_pauses_double_and_repeated_failures_end_in_quarantine_with_the_last_reason() -> None:
    restarts, now = Restarts("e0", Incidents()), 100.0
    pauses: list[float] = []
    while restarts.quarantine is None:
        restarts.ended(f"reason {len(pauses)}", now)
        pauses.append(pause_of(restarts, now))
        if pauses[-1] >= 0:
            now += pauses[-1]
            restarts.started(now)
            now += 1.0
    assert pauses == [0.0, 1.0, 2.0, 4.0, -1.0]
    assert restarts.count == MOST_FAILURES - 1
    assert restarts.quarantine == "it failed 5 times in a row; the last time: reason 4"
    assert not restarts.due(now + 1e6)


def test_the_longest_pause_is_the_one_before_the_quarantine() -> None:
    restarts = Restarts("e0", Incidents())
    for _ in range(MOST_FAILURES):
        restarts.ended("no GPU", 0.0, ready=False)
    assert not restarts.due(DEFAULT.restart_most_s - 1.0)
    before = restarts.quarantine
    assert not restarts.due(DEFAULT.restart_most_s)
    assert before is None
    assert restarts.quarantine is not None


def test_starts_that_are_delayed_are_tried_again_for_ever_and_count_as_no_failure() -> None:
    restarts, now = Restarts("e0", Incidents()), 0.0
    pauses = []
    for _ in range(2 * MOST_FAILURES):
        restarts.ended("Ray gives it no place", now, ready=False, own=False)
        pauses.append(pause_of(restarts, now))
        now += pauses[-1]
        restarts.started(now)
    assert pauses == [0.0, 1.0, 2.0, 4.0] + [DEFAULT.restart_most_s] * 6
    restarts.ended("no GPU", now, ready=False)
    assert restarts.due(now + DEFAULT.restart_most_s), "its only failure of its own"


def test_a_process_that_worked_for_long_is_started_at_once_for_ever() -> None:
    restarts, now = Restarts("e0", Incidents()), 0.0
    for _ in range(3 * MOST_FAILURES):
        restarts.ended("killed", now)
        assert restarts.due(now)
        restarts.started(now)
        now += STABLE_S
    assert restarts.quarantine is None


def test_a_start_that_fails_counts_however_long_it_took() -> None:
    restarts, now = Restarts("e0", Incidents()), 0.0
    while restarts.quarantine is None:
        restarts.ended("no GPU", now, ready=False)
        now += DEFAULT.restart_most_s
        if restarts.due(now):
            restarts.started(now)
        now += 10 * STABLE_S
    assert restarts.count == MOST_FAILURES - 1


@given(
    st.integers(2, 8),
    st.lists(st.floats(0, TOGETHER_S / 2), min_size=8, max_size=8),
    st.integers(1, 20),
)
def test_a_fault_of_most_at_once_quarantines_none(
    count: int, delays: list[float], times: int
) -> None:
    incidents = Incidents()
    kept = [Restarts(f"e{i}", incidents) for i in range(count)]
    now = 0.0
    for _ in range(times):
        for restarts, delay in sorted(zip(kept, delays, strict=False), key=lambda pair: pair[1]):
            restarts.ended("connection lost", now + delay)
        now += DEFAULT.restart_most_s + TOGETHER_S
        for restarts in kept:
            assert restarts.due(now)
            restarts.started(now)
        now += 1.0


@pytest.mark.parametrize(
    ("ends", "count", "common"),
    [(1, 5, False), (2, 5, False), (2, 4, False), (3, 5, True), (5, 5, True)],
)
def test_a_common_fault_is_one_of_most_processes(ends: int, count: int, common: bool) -> None:
    incidents = Incidents()
    incidents.names = {f"e{i}" for i in range(count)}
    for number in range(ends):
        incidents.ended(f"e{number}", 1.0)
        incidents.ended(f"e{number}", 1.1)
    assert incidents.correlated(2.0) is common
    assert not incidents.correlated(2.0 + 2 * TOGETHER_S)
