"""The check after an update names every engine that does not have the weights."""

import logging

import pytest
from fake_calls import FakeCalls
from seer_openrlhf.check import CHECKSUMS, Check, Probe

NEW, OLD = [-1.0, -2.0, -0.5, -3.0], [-1.05, -1.96, -0.52, -2.94]
PROBE = Probe([5, 6, 7, 8, 9], NEW, OLD)


def fleet() -> FakeCalls:
    found = FakeCalls("e0", "e1")
    found.versions = dict.fromkeys(["e0", "e1"], "4")
    found.log_probs_of = dict.fromkeys(["e0", "e1"], NEW)
    return found


def test_equal_weights_have_no_problems_and_missing_checksums_are_noted_once() -> None:
    it = fleet()
    check = Check(it, 60.0)
    for _ in range(2):
        assert check.problems(4, ["e0", "e1"], PROBE) == []
    assert it.counts[CHECKSUMS] == 1


def test_an_engine_of_another_version_is_named() -> None:
    it = fleet()
    it.versions["e1"] = "3"
    assert Check(it, 60.0).problems(4, ["e0", "e1"], PROBE) == [
        "engine e1: its weights have the version 3"
    ]
    assert Check(it, 60.0).problems(4, ["e0"], PROBE) == [], "e1 took no part"


def test_an_engine_with_the_previous_weights_is_named() -> None:
    it = fleet()
    it.log_probs_of["e1"] = OLD
    assert Check(it, 60.0).problems(4, ["e0", "e1"], PROBE) == [
        "engine e1: its log probabilities are those of the previous weights (place 0.00)"
    ]


def test_checksums_that_differ_are_a_problem_each_time() -> None:
    it = fleet()
    engines = {name: {"status": 200, "reply": {"success": True}} for name in ("e0", "e1")}
    it.checksums = {"success": False, "message": "engine e1 has other weights", "engines": engines}
    check = Check(it, 60.0)
    for _ in range(2):
        assert check.problems(4, ["e0", "e1"], PROBE) == ["engine e1 has other weights"]


def test_an_engine_that_has_ended_since_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    it = fleet()
    it.alive.remove("e1")
    with caplog.at_level(logging.WARNING):
        assert Check(it, 60.0).problems(4, ["e0", "e1"], PROBE) == []
    assert caplog.messages == ["step 4: engine e1 is not checked: HTTP 502: it does not answer"]
