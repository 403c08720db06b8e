"""Which groups of a rollout count, and when it has ended."""

import pytest

from seer_sgl.server.errors import Conflict, NotFound
from seer_sgl.server.rollout_tally import RolloutTally


def test_contradictory_verdicts_are_refused() -> None:
    tally = RolloutTally(3, 2, decided=True)
    tally.complete |= dict.fromkeys("ab")
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
