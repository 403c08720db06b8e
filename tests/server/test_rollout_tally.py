"""Which groups of a rollout count, and when it has ended."""

import pytest

from seer_sgl.server.errors import Conflict, NotFound
from seer_sgl.server.rollout_tally import RolloutTally


def complete(tally: RolloutTally, *names: str) -> None:
    tally.complete |= dict.fromkeys(names)


def test_a_target_that_cannot_be_met_ends_with_the_last_group() -> None:
    tally = RolloutTally(2, 2, decided=False)
    complete(tally, "a")
    tally.failed["b"] = None
    assert tally.end == "exhausted"


def test_with_decisions_it_waits_for_the_verdict_on_every_complete_group() -> None:
    tally = RolloutTally(3, 2, decided=True)
    complete(tally, "a", "b", "c")
    assert tally.end is None
    tally.accept("a")
    tally.accept("a")
    tally.reject("b")
    assert (tally.end, tally.undecided) == (None, 1)
    tally.accept("c")
    assert tally.end == "target"
    assert tally.counted == ["a", "c"]


def test_contradictory_verdicts_are_refused() -> None:
    tally = RolloutTally(3, 2, decided=True)
    complete(tally, "a", "b")
    tally.accept("a")
    tally.reject("b")
    with pytest.raises(Conflict, match="accepted"):
        tally.reject("a")
    with pytest.raises(Conflict, match="rejected"):
        tally.accept("b")
    with pytest.raises(Conflict, match="already"):
        tally.reject("b")
    with pytest.raises(NotFound):
        tally.accept("c")
    with pytest.raises(Conflict, match="dynamic_filtering"):
        RolloutTally(1, 1, decided=False).accept("a")
