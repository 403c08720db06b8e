"""The settings of a driver."""

import msgspec

from seer_sgl.config import EnginesConfig, RolloutConfig, SchedulingConfig
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import Placement
from seer_sgl.timing import DEFAULT, Timing

from .draft_groups import Responses
from .tokenizer import Tokenizer


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Sections of the config, and what else a driver needs.

    `gives_up` False: requests wait for an engine as long as it takes (a server, whose clients
    decide). `known`: response lengths of an earlier rollout. `history`: its responses to a prompt.
    `placement` replaces the policy's choice of engines (experiments). `max_inflight`: the most
    chunks in flight on all engines together.
    """

    scheduling: SchedulingConfig = SchedulingConfig()
    engines: EnginesConfig = EnginesConfig()
    rollout: RolloutConfig = RolloutConfig()
    gives_up: bool = True
    tokenizer: Tokenizer | None = None
    known: KnownLengths | None = None
    history: Responses = lambda _: ()
    costs: Costs = msgspec.field(default_factory=Costs)
    placement: Placement | None = None
    max_inflight: int | None = None
    timing: Timing = DEFAULT
