"""What the engines and the other processes count by themselves, for a rollout's report."""

from typing import NamedTuple, Self

from seer_sgl.engine.fleet import Fleet
from seer_sgl.report import draft_report, processes
from seer_sgl.report.recorder import Recorder


class FleetFigures(NamedTuple):
    """The counters of drafting, and the starts of the processes beside the engines."""

    drafted: draft_report.FleetDraftCounters
    starts: dict[str, int]

    @classmethod
    async def of(cls, fleet: Fleet) -> Self:
        """Returns the figures so far."""
        drafters = [engine for engine in fleet.engines if engine.info.draft_tokens > 0]
        drafted = await draft_report.read(drafters, fleet.drafts)
        return cls(drafted, processes.starts_of(fleet.restarts))

    async def record(self, fleet: Fleet, recorder: Recorder) -> None:
        """Gives a rollout's record the difference between these figures and those of now."""
        now = await self.of(fleet)
        recorder.drafting = draft_report.section(self.drafted, now.drafted)
        recorder.processes = processes.section(self.starts, fleet.restarts)
