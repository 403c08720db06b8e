"""The order of requests: probes, groups by estimate, the oracle, and the bound on waiting."""

import gc
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.scheduling.context_aware import ContextAware
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.longest_possible import LongestPossible
from seer_sgl.scheduling.policy import LongestRemaining
from seer_sgl.types import Group, Request
from tests.helpers import make_group
from tests.support.policies import UNGUARDED, end, grow, pushed, taken


def seer(known: KnownLengths | None = None) -> ContextAware:
    return ContextAware(known, guard_every=UNGUARDED)


def test_the_first_request_of_each_group_goes_first() -> None:
    policy = seer()
    pushed(policy, make_group("a", n=3), make_group("b", n=2))
    assert taken(policy) == ["a.0", "b.0", "a.1", "a.2", "b.1"]


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


def first_by_the_rules(ready: set[Request], known: KnownLengths) -> Request:
    """Returns the request that goes next, with a scan of all: probes, then groups of unknown
    length, then requests past the estimate of their group, then the longest group."""

    def rank(request: Request) -> tuple[int, ...]:
        group = request.group
        past = list(known.of(group).values())
        lengths = past + [each.generated for each in group.requests if each.finish_reason]
        if request.index == 0 and not past:
            return 0, request.generated, request.order
        if not lengths:
            return 1, request.generated, request.order
        estimate = sum(lengths) // len(lengths) if past else max(lengths)
        if request.generated >= estimate:
            return 2, -request.generated, request.order
        return 3, -estimate, group.requests[0].order, request.order

    return min(ready, key=rank)


GROUPS = {"known": (10, 30), "longer": (40, 50, 0), "unknown": (), "new": ()}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "back", "back", "back", "end"]),
        st.integers(0, 11),
        st.integers(0, 25),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_the_next_request_is_that_of_a_scan_of_all(steps: list[tuple[str, int, int]]) -> None:
    known = KnownLengths()
    for name, lengths in GROUPS.items():
        for index, length in enumerate(lengths):
            known.add(length, prompt_ids=None, group_id=name, index=index)
    policy, groups = seer(known), [make_group(name, n=3) for name in GROUPS]
    ready = {request for group in groups for request in group.requests}
    flying: list[Request] = []
    pushed(policy, *groups)
    for step, number, tokens in [*[("take", 0, 0)] * 12, *steps, *[("take", 0, 0)] * 12]:
        if step == "take" and ready:
            request = first_by_the_rules(ready, known)
            assert policy.peek() is request
            assert policy.pop() is request
            ready.remove(request)
            flying.append(request)
        elif step == "back" and flying:
            request = grow(flying.pop(number % len(flying)), tokens)
            policy.push(request)
            ready.add(request)
        elif step == "end" and flying:
            request = flying.pop(number % len(flying))
            end(policy, request, request.generated + tokens)
    assert policy.peek() is None


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


@pytest.mark.parametrize("kind", [ContextAware, LongestPossible])
def test_finished_groups_are_forgotten_while_longer_ones_are_always_ready(
    kind: type[ContextAware | LongestPossible],
) -> None:
    policy = kind(guard_every=UNGUARDED)
    long = [make_group(f"long{i}", n=2, max_response_len=10_000) for i in range(3)]
    pushed(policy, *long)
    short: WeakSet[Group] = WeakSet()
    for number in range(500):
        group = make_group(f"short{number}", n=2)
        short.add(group)
        pushed(policy, group)
        for request in group.requests:
            policy.take_out(request)
            end(policy, request, 10)
        policy.withdraw(group)
    gc.collect()
    assert len(short) < 100
    assert {group.uid for group in long} == set(policy._groups)
    assert len(policy._queue._heap) < 100
    assert sorted(taken(policy)) == sorted(r.uid for group in long for r in group.requests)
