"""The ledger follows its engine's reports: it backs off at once and recovers slowly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.scheduling.feedback import BACK_OFF, FLOOR, RECOVERY, KVFeedback
from seer_sgl.scheduling.ledger import KVLedger

CAPACITY = 10_000


def test_one_incident_shrinks_once_however_many_chunks_tell_of_it() -> None:
    feedback = KVFeedback(CAPACITY)
    for _ in range(5):
        feedback.retracted()
    assert feedback.usable == CAPACITY * 7 // 8
    feedback.reported(0, 0)
    feedback.retracted()
    assert feedback.usable == CAPACITY * 49 // 64


def test_experience_alone_never_forbids_more_than_seven_eighths() -> None:
    feedback = KVFeedback(CAPACITY)
    for _ in range(100):
        feedback.retracted()
        feedback.reported(0, 0)
    assert feedback.usable == CAPACITY // 8


def test_an_eighth_comes_back_in_a_minute_of_quiet_and_not_sooner() -> None:
    feedback = KVFeedback(CAPACITY)
    feedback.retracted()
    feedback.reported(0, 0)  # no recovery yet: the retraction belongs to this report
    reports = round((1 - BACK_OFF) / RECOVERY)
    assert reports == 128, "at one report every half second"
    for _ in range(reports):
        assert feedback.usable < CAPACITY
        feedback.reported(0, 0)
    assert feedback.usable == CAPACITY


EVENTS = st.lists(
    st.one_of(
        st.just("retracted"), st.tuples(st.integers(0, 2 * CAPACITY), st.integers(0, CAPACITY))
    ),
    max_size=80,
)


@given(EVENTS)
def test_any_history_stays_within_bounds_and_ends_in_full_use(
    events: list[str | tuple[int, int]],
) -> None:
    feedback = KVFeedback(CAPACITY)
    for event in events:
        before = feedback.usable
        if isinstance(event, str):
            feedback.retracted()
            assert before * BACK_OFF - 1 <= feedback.usable <= before
        else:
            feedback.reported(*event)
            if event[0] <= event[1]:
                assert feedback.usable >= before, "nobody else is there: never less"
            assert feedback.usable <= CAPACITY - max(0, min(event[0], CAPACITY) - event[1])
        assert 0 <= feedback.usable <= CAPACITY
    for _ in range(round((1 - FLOOR) / RECOVERY) + 40):
        feedback.reported(0, 0)
    assert feedback.usable == CAPACITY


def test_the_ledger_promises_no_more_than_is_usable_but_always_one_chunk() -> None:
    ledger = KVLedger(1000)
    assert not ledger.reported(1000), "no more room than before"
    assert ledger.feedback.usable == 0
    assert ledger.admits("g", 1000), "else a request could wait for ever"
    ledger.reserve("g", 10, 400)
    assert not ledger.admits("h", 11)
    with pytest.raises(ValueError, match="do not fit"):
        ledger.reserve("h", 10, 11)
    assert all(ledger.reported(400) for _ in range(5)), (
        "the other clients have left, so there is more room"
    )
    assert ledger.admits("h", 11)


def test_what_was_promised_a_moment_ago_is_not_taken_for_somebody_elses() -> None:
    ledger = KVLedger(1000)
    ledger.reserve("g", 10, 600)
    ledger.release("g", 600)
    for _ in range(2):  # a report may be older than the chunk's return
        ledger.reported(600)
        assert ledger.feedback.usable == 1000
    ledger.reported(600)
    assert ledger.feedback.usable == 400
