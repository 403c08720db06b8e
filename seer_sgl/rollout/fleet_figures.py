"""What the engines and the other processes count by themselves, for a rollout's report."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from seer_sgl.engine.fleet import Fleet
from seer_sgl.processes.restarts import Restarts
from seer_sgl.report import draft_report
from seer_sgl.report.recorder import Recorder


class FleetFigures(NamedTuple):
    """The counters of drafting, and the starts of each process beside the engines after its first
    one, by name."""

    drafted: draft_report.FleetDraftCounters
    starts: dict[str, int]

    @classmethod
    async def of(cls, fleet: Fleet) -> Self:
        """Returns the figures so far."""
        drafters = [engine for engine in fleet.engines if engine.info.draft_tokens > 0]
        drafted = await draft_report.read(drafters, fleet.drafts)
        return cls(drafted, {process.name: process.count for process in fleet.restarts})

    async def record(self, fleet: Fleet, recorder: Recorder) -> None:
        """Gives a rollout's record the difference between these figures and those of now."""
        now = await self.of(fleet)
        recorder.drafting = draft_report.section(self.drafted, now.drafted)
        recorder.processes = process_section(self.starts, fleet.restarts)


def process_section(
    before: Mapping[str, int], processes: Iterable[Restarts]
) -> list[dict[str, Any]]:
    """Returns the report's section `processes`. `before`: the starts before the rollout."""
    return [
        {
            "name": process.name,
            "respawns": process.count - before.get(process.name, 0),
            "quarantine": process.quarantine,
        }
        for process in processes
    ]
