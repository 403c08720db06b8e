"""The states of an engine: what may follow what, whatever the monitor sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.driver.health import TRANSITIONS, Health, State
from seer_sgl.engine_types import EngineProblem

WRONG = EngineProblem("it serves weights a, not b", weights=True)


def test_an_engine_that_missed_an_update_is_not_healthy_without_the_weights() -> None:
    health = Health()
    health.missed("it missed a weight update")
    with pytest.raises(ValueError, match="it lacks the weights"):
        health.answered(None)
    health.died("killed")
    health.started("again")
    with pytest.raises(ValueError, match="it lacks the weights"):
        health.answered(None)
    health.answered(EngineProblem(health.lacks or "", weights=True))
    assert health.state is State.STALE
    health.has_weights()
    assert not health.serves, "its weights are checked first"
    health.answered(None)
    assert health.serves


def test_an_engine_with_other_weights_stays_stale_until_a_check_finds_the_right_ones() -> None:
    health = Health()
    health.started("it was restarted")
    health.answered(WRONG)
    assert (health.state, health.why) == (State.STALE, WRONG.why)
    health.failed("no answer")
    health.answered(EngineProblem("HTTP 503"))
    assert health.state is State.STALE
    health.answered(None)
    assert health.serves


def test_a_change_is_reported_once() -> None:
    health = Health()
    assert health.change() is None
    health.failed("reset")
    health.failed("another reset")
    assert (health.change(), health.why, health.change()) == (State.SUSPECT, "reset", None)


SIGNALS = {
    "failed": lambda health: health.failed("f"),
    "died": lambda health: health.died("d"),
    "started": lambda health: health.started("s"),
    "missed": lambda health: health.missed("m"),
    "has weights": lambda health: health.has_weights(),
    "good": lambda health: health.answered(None),
    "bad": lambda health: health.answered(EngineProblem("bad")),
    "other weights": lambda health: health.answered(WRONG),
    "drain": lambda health: health.drain(),
    "quarantined": lambda health: health.quarantined("q"),
}


@given(st.lists(st.sampled_from(sorted(SIGNALS)), max_size=40))
def test_whatever_is_seen_only_possible_states_follow(signals: list[str]) -> None:
    health = Health()
    started = has_weights = True
    for signal in signals:
        before, lacks, why = health.state, health.lacks, health.why
        try:
            SIGNALS[signal](health)
        except ValueError:
            assert signal in ("good", "quarantined")
            assert health.state is before
            continue
        after = health.state
        if signal == "died" and after is State.DEAD:
            started = False
        if signal == "started" and after is State.STARTING:
            started = True
        if signal in ("missed", "has weights"):
            has_weights = signal == "has weights"
        if before is after:
            assert health.why == why
        else:
            passed = {after} if signal != "started" else {State.DEAD, State.STARTING}
            if signal == "quarantined":
                passed |= {State.DEAD}
            assert passed & TRANSITIONS[before]
        if after is State.HEALTHY and before is not State.HEALTHY:
            assert signal == "good"
            assert started
            assert has_weights
            assert lacks is None
        if before in (State.DRAINING, State.QUARANTINED):
            assert after in (before, State.DRAINING)
