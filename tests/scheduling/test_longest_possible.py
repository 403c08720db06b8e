"""The order of the most tokens that a request may still get."""

from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.longest_possible import LongestPossible
from seer_sgl.types import Group, Sampling
from tests.helpers import make_group
from tests.support.policies import UNGUARDED, end, grow, pushed, taken

LIMIT = 10_000


def policy_of(known: KnownLengths | None = None) -> LongestPossible:
    return LongestPossible(known, guard_every=UNGUARDED)


def group_of(name: str, n: int = 4) -> Group:
    group = make_group(name, n=n, max_response_len=LIMIT)
    group.sampling = Sampling(max_new_tokens=LIMIT)
    return group


def test_while_nothing_is_known_all_advance_together() -> None:
    policy = policy_of()
    a, b = group_of("a", n=2), group_of("b", n=2)
    pushed(policy, a, b)
    assert taken(policy, 1) == ["a.0"]
    policy.push(grow(a.requests[0], 500))
    assert taken(policy, 3) == ["b.0", "a.1", "b.1"], "groups take turns"
    policy.push(grow(b.requests[1], 200))
    assert taken(policy) == ["b.1", "a.0"]


def test_a_group_falls_behind_once_its_responses_are_short() -> None:
    policy = policy_of()
    short, long = group_of("short"), group_of("long")
    pushed(policy, short, long)
    taken(policy)
    end(policy, short.requests[0], 200)
    end(policy, short.requests[1], 250)
    end(policy, long.requests[0], 6_000)
    for group in (short, long):
        for request in group.requests[2:]:
            policy.push(grow(request, 100))
    assert taken(policy) == ["long.2", "long.3", "short.2", "short.3"]


def test_responses_that_run_on_bring_their_group_forward_again() -> None:
    policy = policy_of()
    a, b = group_of("a"), group_of("b")
    pushed(policy, a, b)
    taken(policy)
    for group, length in ((a, 300), (b, 500)):
        end(policy, group.requests[0], length)
        end(policy, group.requests[1], length)
    policy.push(grow(a.requests[2], 50))
    policy.push(grow(b.requests[2], 50))
    assert taken(policy) == ["b.2", "a.2"]
    policy.push(grow(a.requests[2], 2_000))  # and it has not ended
    policy.push(grow(a.requests[3], 50))
    policy.push(grow(b.requests[3], 50))
    assert taken(policy, 1) == ["a.3"]


def test_lengths_of_an_earlier_rollout_count_before_anything_has_ended() -> None:
    known = KnownLengths()
    for _ in range(4):
        known.add(100, prompt_ids=None, group_id="short", index=None)
        known.add(1_000, prompt_ids=None, group_id="long", index=None)
    policy = policy_of(known)
    pushed(policy, group_of("short", n=2), group_of("new", n=2), group_of("long", n=2))
    assert taken(policy) == ["new.0", "new.1", "long.0", "long.1", "short.0", "short.1"]
