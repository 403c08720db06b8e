"""The plan of a chaotic rollout depends on its seed alone, and has every kind of fault."""

import itertools
from collections import Counter

import pytest

from tests.chaos.plan import FIRST, KINDS, LAST, draw

SEEDS = range(50)


def test_one_seed_gives_one_plan_and_another_seed_another() -> None:
    plans = [draw(seed, 3) for seed in SEEDS]
    assert plans == [draw(seed, 3) for seed in SEEDS]
    assert all(one != other for one, other in itertools.pairwise(plans))


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_kind_is_drawn_once_per_round_within_its_bounds(rounds: int) -> None:
    for seed in SEEDS:
        faults = draw(seed, 3, rounds)
        assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, rounds)
        times = [fault.at for fault in faults]
        assert times == sorted(times)
        assert FIRST <= times[0] <= times[-1] <= LAST
        for fault in faults:
            least, most = fault.kind.seconds
            assert least <= fault.seconds <= most


def test_the_engines_take_turns() -> None:
    for seed in SEEDS:
        faults = draw(seed, 3, 3)
        for place in ("engine", "http"):
            hits = Counter(f.target for f in faults if f.kind.place == place)
            assert set(hits) == {"e0", "e1", "e2"}
            assert max(hits.values()) - min(hits.values()) <= 1
        assert {f.target for f in faults} == {"e0", "e1", "e2", "store", "master", "hub"} | {
            "link",
            "hub link",
        }
