"""Engines that are given back before a rollout ends."""

import functools
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fold.bound import Course, given_back
from bench.fold.packing import Packer
from bench.fold.plan import Left, Plan, fewest
from bench.fold.policy import Account
from bench.fold.rollout import Arm, Folded, rolled_out
from bench.fold.table import Line, table
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.variants import Scenario
from seer_sgl.traces.trace import Responses
from tests.sim.helpers import small

ENGINE = EngineConfig(count=4, kv_tokens=20_000, max_running_requests=64)
LENGTHS = st.lists(st.integers(1, 6_000), min_size=1, max_size=40)


def left(tokens: list[int], kv: int = 500) -> Left:
    return Left(np.array([tokens]), np.full(len(tokens), kv))


def long_and_short() -> Scenario:
    """Four groups of short responses, one of long ones."""
    groups = [[200 + 10 * i] * 8 for i in range(12)] + [[6_000] * 6]
    responses = [
        Responses(f"g{i}", array("i", [i]) * 200, lengths) for i, lengths in enumerate(groups)
    ]
    return Scenario("a", responses, small())


@functools.cache
def folded(arm: Arm | None) -> Folded:
    return rolled_out(long_and_short(), arm)


@given(LENGTHS, st.integers(1, 8), st.floats(-10.0, 400.0))
@settings(max_examples=50, deadline=None)
def test_packs_hold_every_request_once_on_no_more_engines_than_there_are(
    tokens: list[int], engines: int, within_s: float
) -> None:
    packer, uids = Packer(ENGINE), [f"r{i}" for i in range(len(tokens))]
    works = packer.works(left(tokens), uids, within_s, engines)
    packs, ends_s = packer.packed(works, within_s, engines)
    assert sorted(work.uid for pack in packs for work in pack) == sorted(uids)
    assert len(packs) <= engines
    engine_of = {work.uid: str(i) for i, pack in enumerate(packs) for work in pack}
    assert packer.seconds(works, engine_of) == pytest.approx(ends_s)


@given(LENGTHS, st.floats(0.5, 400.0))
@settings(max_examples=30, deadline=None)
def test_requests_share_an_engine_only_if_they_end_in_time(
    tokens: list[int], within_s: float
) -> None:
    packer, uids = Packer(ENGINE), [f"r{i}" for i in range(len(tokens))]
    works = packer.works(left(tokens), uids, within_s, 4)
    for pack in packer.packed(works, within_s, len(tokens))[0]:
        ends_s = packer.seconds(pack, {work.uid: "e" for work in pack})
        assert len(pack) == 1 or ends_s <= within_s


def test_more_time_needs_fewer_engines() -> None:
    packer, tokens = Packer(ENGINE), [5_000] * 2 + [500] * 20
    uids = [str(i) for i in range(len(tokens))]

    def needed(within_s: float) -> int:
        works = packer.works(left(tokens), uids, within_s, 4)
        return len(packer.packed(works, within_s, 4)[0])

    alone_s = Plan(ENGINE).ends_in(left([5_000]), 1)
    counts = [needed(alone_s * share) for share in (1.01, 1.1, 1.5, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 1 and counts[-1] == 1


def test_a_plan_with_more_engines_is_not_slower() -> None:
    plan, work = Plan(ENGINE), left([4_000, 3_000, 2_500, *range(100, 2_000, 50)])
    ends = [plan.ends_in(work, engines) for engines in (1, 2, 4, 8)]
    assert ends == sorted(ends, reverse=True)
    assert fewest(lambda engines: plan.ends_in(work, engines), 8, ends[1]) == 2


def test_the_account_takes_back_time_that_was_lost() -> None:
    account = Account(slack=0.1)
    assert account.within_s(0.0, 100.0) == pytest.approx(110.0)
    account.decided(100.0, 110.0)
    # After 11 s, the open engines have done what all would have in 10 s.
    assert account.within_s(11.0, 90.0) == pytest.approx(99.0)
    assert account.end_s == pytest.approx(100.0)


@pytest.mark.parametrize("oracle", [False, True])
def test_a_folded_rollout_has_all_tokens_and_gives_engines_back(oracle: bool) -> None:
    plain, found = folded(None), folded(Arm(slack=0.2, oracle=oracle))
    assert (
        found.response_tokens
        == plain.response_tokens
        == 6_000 * 6 + 8 * sum(200 + 10 * i for i in range(12))
    )
    assert found.engines, "no engine was given back"
    times = [at for at, _ in found.engines]
    assert times == sorted(times) and [count for _, count in found.engines] == list(
        range(3, 3 - len(times), -1)
    )
    whole_s = 4 * found.wall_s
    assert found.released == pytest.approx(
        sum(found.wall_s - at for at in times) / whole_s, abs=0.001
    )


def test_the_bound_grows_with_the_slack() -> None:
    scenario, course = long_and_short(), Course()
    plain = rolled_out(scenario, None, [course])
    shares = [
        given_back(course, plain.wall_s, slack, scenario.config.engine)[0]
        for slack in (0.0, 0.05, 0.5)
    ]
    assert shares == sorted(shares) and shares[0] < shares[-1] and shares[-1] > 0.2


def a_line(name: str, seed: int, arm: Arm | None, wall_s: float, released: float) -> Line:
    return {
        "lengths": name,
        "seed": seed,
        "arm": None if arm is None else {"slack": arm.slack, "oracle": arm.oracle},
        "late": wall_s / 100 - 1,
        "wall_s": wall_s,
        "released": released,
        "engines": [(50.0, 3), (80.0, 2)],
        "migrations": 10 if arm is None else 11,
        "fetched_tokens": 100 if arm is None else 120,
        "bound": {"0.02": 0.1},
    }


def two_draws(name: str) -> list[Line]:
    return [
        a_line(name, seed, arm, wall_s + seed, released + 0.01 * seed)
        for seed in (1, 2)
        for arm, wall_s, released in (
            (None, 99.0, 0.0),
            (Arm(slack=0.02), 102.0, 0.04),
            (Arm(slack=0.02, oracle=True), 101.0, 0.05),
        )
    ]


def test_the_table_has_mean_and_range_of_the_draws_and_the_bound_that_was_simulated() -> None:
    lines = [{**line, "bound": {}} for line in two_draws("cpu")]
    assert "| cpu | 2 % | 2 |  | 6.5 % " in table(lines)
    *_, row = table(two_draws("qwen2-vl-72b")).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "qwen2-vl-72b",
        "2 %",
        "2",
        "10.0 % (10.0 to 10.0)",
        "6.5 % (6.0 to 7.0)",
        "2.5 % (2.0 to 3.0)",
        "5.5 % (5.0 to 6.0)",
        "3.5 % (3.0 to 4.0)",
        "10.0 % (10.0 to 10.0)",
        "20.0 % (20.0 to 20.0)",
    ]
