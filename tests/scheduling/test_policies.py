"""The order of requests: probes, groups by estimate, the oracle, and the bound on waiting."""

import gc
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.scheduling.context_aware import ContextAware
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.longest_possible import LongestPossible
from seer_sgl.scheduling.policy import (
    LongestRemaining,
)
from seer_sgl.types import Group, Request
from tests.helpers import make_group, make_reply
from tests.support.policies import UNGUARDED, end, grow, pushed, taken


def seer(known: KnownLengths | None = None) -> ContextAware:
    return ContextAware(known, guard_every=UNGUARDED)


def test_the_first_request_of_each_group_goes_first() -> None:
    policy = seer()
    pushed(policy, make_group("a", n=3), make_group("b", n=2))
    assert taken(policy) == ["a.0", "b.0", "a.1", "a.2", "b.1"]


def test_among_probes_the_one_with_the_fewest_tokens_goes_first() -> None:
    policy = seer()
    groups = [make_group(name, n=2) for name in "abc"]
    pushed(policy, *groups)
    assert taken(policy, 3) == ["a.0", "b.0", "c.0"]
    for group, tokens in zip(groups, (30, 10, 20), strict=True):
        policy.push(grow(group.requests[0], tokens))
    assert taken(policy, 4) == ["b.0", "c.0", "a.0", "a.1"]


def test_groups_go_by_the_longest_of_their_ended_samples_and_unknown_ones_before() -> None:
    policy = seer()
    short, unknown, long = make_group("s", n=4), make_group("u", n=4), make_group("l", n=4)
    pushed(policy, short, unknown, long)
    taken(policy, 3)
    end(policy, short.requests[0], 20)
    end(policy, long.requests[0], 60)
    assert taken(policy, 5) == ["u.1", "u.2", "u.3", "l.1", "l.2"]
    end(policy, long.requests[1], 10)
    assert taken(policy, 1) == ["l.3"], "the longest counts, not the latest"


def test_a_group_moves_up_when_one_of_its_samples_turns_out_long() -> None:
    policy = seer()
    a, b = make_group("a", n=5), make_group("b", n=5)
    pushed(policy, a, b)
    taken(policy, 2)
    end(policy, a.requests[0], 50)
    end(policy, b.requests[0], 40)
    assert taken(policy, 5) == ["a.1", "a.2", "a.3", "a.4", "b.1"]
    policy.push(grow(a.requests[1], 5))
    assert policy.peek() is a.requests[1]
    end(policy, b.requests[1], 51)
    assert taken(policy) == ["b.2", "b.3", "b.4", "a.1"]


def test_between_chunks_a_request_keeps_its_place_in_its_group() -> None:
    policy = seer()
    group = make_group("a", n=4)
    pushed(policy, group)
    assert taken(policy, 3) == ["a.0", "a.1", "a.2"]
    end(policy, group.requests[0], 50)
    policy.push(grow(group.requests[1], 30))
    assert taken(policy) == ["a.1", "a.3"]


def test_while_nothing_is_known_the_request_with_the_fewest_tokens_goes_first() -> None:
    policy = seer()
    a, b = make_group("a", n=3), make_group("b", n=3)
    pushed(policy, a, b)
    assert taken(policy, 4) == ["a.0", "b.0", "a.1", "a.2"]
    policy.push(grow(a.requests[1], 30))
    policy.push(grow(a.requests[2], 20))
    assert taken(policy, 3) == ["b.1", "b.2", "a.2"], "those that have nothing yet go first"
    policy.push(grow(b.requests[1], 40))
    end(policy, a.requests[0], 90)
    assert taken(policy) == ["b.1", "a.1"], "a is known now, b is not"


def test_a_request_that_outgrew_its_siblings_goes_before_groups_with_an_estimate() -> None:
    policy = seer()
    short, long = make_group("s", n=4), make_group("l", n=3)
    pushed(policy, short, long)
    taken(policy, 7)
    end(policy, short.requests[0], 20)
    end(policy, long.requests[0], 60)
    policy.push(grow(long.requests[1], 10))
    policy.push(grow(short.requests[1], 19))
    policy.push(grow(short.requests[2], 20))
    policy.push(grow(short.requests[3], 30))
    assert taken(policy, 1) == ["s.3"], "the longest request past its estimate"
    policy.push(grow(short.requests[3], 5))
    end(policy, long.requests[2], 90)
    assert taken(policy) == ["s.3", "s.2", "l.1", "s.1"]


def test_an_estimate_that_catches_up_puts_a_request_back_into_its_group() -> None:
    policy = seer()
    short, long = make_group("s", n=3), make_group("l", n=2)
    pushed(policy, short, long)
    taken(policy, 5)
    end(policy, short.requests[0], 20)
    end(policy, long.requests[0], 60)
    policy.push(grow(short.requests[1], 25))
    policy.push(grow(long.requests[1], 5))
    assert policy.peek() is short.requests[1]
    end(policy, short.requests[2], 40)
    assert taken(policy) == ["l.1", "s.1"]


def test_what_is_ready_when_the_first_sample_ends_may_have_outgrown_it_already() -> None:
    policy = seer()
    short, long = make_group("s", n=3), make_group("l", n=2)
    pushed(policy, short, long)
    taken(policy, 5)
    end(policy, long.requests[0], 60)
    policy.push(grow(short.requests[1], 25))
    policy.push(grow(long.requests[1], 5))
    end(policy, short.requests[0], 20)
    assert taken(policy) == ["s.1", "l.1"]


def test_a_changed_estimate_lists_the_group_once_more_not_its_requests() -> None:
    policy = seer()
    group = make_group("a", n=100)
    pushed(policy, group)
    taken(policy, 10)
    before = len(policy._queue), len(policy._groups["a"].ready)
    end(policy, group.requests[3], 7)
    assert (len(policy._queue), len(policy._groups["a"].ready)) == (before[0] + 1, before[1])
    end(policy, group.requests[4], 5)
    assert len(policy._queue) == before[0] + 1, "the estimate is the same"
    assert len(taken(policy)) == 90


def test_what_is_ready_when_a_known_estimate_falls_may_have_outgrown_it() -> None:
    known = KnownLengths()
    known.add(100, prompt_ids=None, group_id="a", index=0)
    known.add(80, prompt_ids=None, group_id="b", index=0)
    policy = seer(known)
    group, other = make_group("a", n=3), make_group("b", n=1)
    pushed(policy, group, other)
    assert taken(policy) == ["a.0", "a.1", "a.2", "b.0"]
    policy.push(grow(group.requests[1], 60))
    policy.push(other.requests[0])
    end(policy, group.requests[0], 10)  # a: (100 + 10) / 2 = 55
    assert taken(policy) == ["a.1", "b.0"]


def test_a_group_known_from_before_needs_no_probe_and_goes_by_its_mean() -> None:
    known = KnownLengths()
    for name, lengths in {"a": (10, 90), "b": (60, 60), "c": (5, 7)}.items():
        for index, length in enumerate(lengths):
            known.add(length, prompt_ids=None, group_id=name, index=index)
    policy = seer(known)
    groups = {name: make_group(name, n=2) for name in ("c", "a", "b", "new")}
    pushed(policy, *groups.values())
    assert taken(policy) == ["new.0", "new.1", "b.0", "b.1", "a.0", "a.1", "c.0", "c.1"]


def test_what_has_ended_now_counts_beside_what_ended_before() -> None:
    known = KnownLengths()
    known.add(50, prompt_ids=None, group_id="a", index=0)
    known.add(60, prompt_ids=None, group_id="b", index=0)
    policy = seer(known)
    a, b = make_group("a", n=3), make_group("b", n=3)
    pushed(policy, a, b)
    assert taken(policy, 1) == ["b.0"]
    end(policy, b.requests[0], 20)  # mean 40
    assert taken(policy) == ["a.0", "a.1", "a.2", "b.1", "b.2"]


def test_the_oracle_sends_what_has_most_tokens_to_go() -> None:
    lengths = {"a.0": 50, "a.1": 80, "b.0": 70}
    policy = LongestRemaining(lambda request: lengths[request.uid])
    a, b = make_group("a", n=2), make_group("b", n=1)
    pushed(policy, a, b)
    assert taken(policy, 1) == ["a.1"]
    policy.push(grow(a.requests[1], 20))  # 60 to go
    assert taken(policy) == ["b.0", "a.1", "a.0"]


@pytest.mark.parametrize("kind", [ContextAware, LongestPossible])
@settings(max_examples=200, deadline=None)
@given(
    guard_every=st.integers(1, 6),
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "take", "back", "end", "new"]), st.integers(0, 99)),
        max_size=150,
    ),
)
def test_no_ready_request_waits_longer_than_the_bound(
    kind: type[ContextAware | LongestPossible], guard_every: int, steps: list[tuple[str, int]]
) -> None:
    policy = kind(guard_every=guard_every)
    due: dict[Request, int] = {}  # the pick by which each ready request must be taken
    flying: list[Request] = []
    takes = names = 0

    def ready(request: Request) -> None:
        policy.push(request)
        due[request] = takes + guard_every * (len(due) + 1)

    for step, number in [("new", 3), *steps, *[("take", 0)] * 300]:
        if step == "new":
            names += 1
            for request in make_group(f"g{names}", n=1 + number % 4).requests:
                ready(request)
        elif step == "take" and due:
            request = policy.pop()
            takes += 1
            assert due.pop(request) >= takes
            flying.append(request)
            assert all(bound >= takes for bound in due.values())
        elif step == "back" and flying:
            ready(grow(flying.pop(number % len(flying)), number % 7))
        elif step == "end" and flying:
            request = flying.pop(number % len(flying))
            end(policy, request, request.generated + number)
    assert policy.peek() is None
    assert not due


def test_finished_groups_are_forgotten_while_longer_ones_are_always_ready() -> None:
    policy = seer()
    long = [make_group(f"long{i}", n=2, max_response_len=10_000) for i in range(3)]
    pushed(policy, *long)
    short: WeakSet[Group] = WeakSet()
    for number in range(500):
        group = make_group(f"short{number}", n=2)
        short.add(group)
        pushed(policy, group)
        for request in group.requests:
            policy.take_out(request)
            request.response_ids = make_reply(10).ids
            policy.finished(request)
        policy.withdraw(group)
    gc.collect()
    assert len(short) < 100
    assert sorted(taken(policy)) == sorted(r.uid for group in long for r in group.requests)
