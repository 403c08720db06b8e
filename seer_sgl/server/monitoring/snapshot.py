"""What the server knows at one time, for `/metrics` and the live page."""

from collections.abc import Mapping

import msgspec

from seer_sgl.driver.state import EngineState
from seer_sgl.engine_types import EngineInfo
from seer_sgl.report.counts import EngineCounts
from seer_sgl.report.draft_report import FleetDraftCounters
from seer_sgl.server.rollout_served import ServedRollout

from .counts import ServerCounts


class EngineSnapshot(msgspec.Struct, frozen=True):
    """One engine: its description, its place in the schedule and its counts."""

    info: EngineInfo
    state: EngineState
    counts: EngineCounts


class Snapshot(msgspec.Struct, frozen=True):
    """The server. `now`: seconds on the driver's clock.

    `rollouts`: those of clients, by the driver's caller.
    """

    counts: ServerCounts
    engines: list[EngineSnapshot]
    drafts: FleetDraftCounters
    passthrough: Mapping[str, int]
    open_groups: int
    sessions: int
    rollouts: Mapping[str, ServedRollout]
    paused: bool
    now: float
