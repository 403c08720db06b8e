"""The strategies that the config names in `scheduling.policy`."""

from collections.abc import Callable
from typing import NamedTuple

from .baselines import PinnedGroups, RoundRobin, SingleRequests
from .context_aware import ContextAware
from .engine_index import EngineIndex
from .lengths import KnownLengths
from .longest_possible import LongestPossible
from .placement import CacheAware, Placement
from .policy import FirstComeFirstServed, LongestRemaining, Policy


class Strategy(NamedTuple):
    """A policy per caller and a placement. `undivided`: whole requests are sent, all at once,
    without ledger and without a limit of chunks in flight."""

    make_policy: Callable[[], Policy]
    placement: Placement
    undivided: bool = False


def make_strategy(
    name: str,
    cache_aware: CacheAware,
    known: KnownLengths | None = None,
) -> Strategy:
    """Returns the strategy that `scheduling.policy` names. `cache_aware`: the placement of the
    strategies that divide requests.

    `known`: lengths of earlier rollouts, the prior of `seer` and `seer_published`, and the true
    lengths of `oracle`. Raises KeyError if the name is unknown.
    """
    if name == "seer":
        return Strategy(lambda: LongestPossible(known), cache_aware)
    if name == "seer_published":
        return Strategy(lambda: ContextAware(known), cache_aware)
    if name == "fcfs":
        return Strategy(FirstComeFirstServed, cache_aware)
    if name == "oracle":
        truth = known or KnownLengths()
        return Strategy(lambda: LongestRemaining(truth.true_length), cache_aware)
    placements: dict[str, Placement] = {
        "group_round_robin": PinnedGroups(RoundRobin()),
        "group_least_loaded": PinnedGroups(EngineIndex.least_loaded),  # OpenRLHF's rule
        "request_round_robin": SingleRequests(RoundRobin()),
    }
    return Strategy(FirstComeFirstServed, placements[name], undivided=True)
