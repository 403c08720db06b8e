"""What the names of the config stand for."""

from collections.abc import Callable
from typing import NamedTuple

from .baselines import PinnedGroups, RoundRobin, SingleRequests, least_requests
from .context_aware import ContextAware
from .lengths import KnownLengths
from .placement import CacheAware, Placement
from .policy import FirstComeFirstServed, LongestRemaining, Policy


class Strategy(NamedTuple):
    """Who goes next, by a policy per caller, and where to. `whole`: requests are undivided and all
    sent at once, so there is neither a ledger nor a limit of chunks in flight."""

    make_policy: Callable[[], Policy]
    placement: Placement
    whole: bool = False


def make_strategy(
    name: str,
    cache_aware: CacheAware,
    known: KnownLengths | None = None,
) -> Strategy:
    """The strategy `scheduling.policy` names. `cache_aware`: the placement of those that divide.

    `known`: lengths of earlier rollouts, a prior of `seer` and the truth of `oracle`. Raises
    KeyError for a name that is none.
    """
    if name == "seer":
        return Strategy(lambda: ContextAware(known), cache_aware)
    if name == "fcfs":
        return Strategy(FirstComeFirstServed, cache_aware)
    if name == "oracle":
        truth = known or KnownLengths()
        return Strategy(lambda: LongestRemaining(truth.true_length), cache_aware)
    placements: dict[str, Placement] = {
        "group_round_robin": PinnedGroups(RoundRobin()),
        "group_least_loaded": PinnedGroups(least_requests),
        "request_round_robin": SingleRequests(RoundRobin()),
    }
    return Strategy(FirstComeFirstServed, placements[name], whole=True)
