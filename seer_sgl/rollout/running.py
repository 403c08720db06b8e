"""`Running`: one rollout of a `Rollout`, from its first chunk to its last group."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from seer_sgl.driver.driver import Driver
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.fleet import Fleet
from seer_sgl.errors import RolloutError
from seer_sgl.report import draft_report, processes
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Group, OnFailure

from .journaled import RolloutJournal, Start


class Running:
    """A rollout whose groups are checked, and restored if it has a `journal`.

    `started_at`: the zero of its times. `drafted`: the counters of drafting before it.
    """

    def __init__(
        self,
        fleet: Fleet,
        driver: Driver,
        groups: Sequence[Group],
        *,
        start: Start,
        started_at: float,
        drafted: draft_report.FleetDraftCounters,
        journal: RolloutJournal | None,
        on_failure: OnFailure,
    ) -> None:
        self.recorder = Recorder(start.rollout_id, start.seed, driver.engines, groups, started_at)
        if journal is not None:
            journal.mark(self.recorder)
        self._fleet = fleet
        self._driver = driver
        self._groups = groups
        self._rollout_id = start.rollout_id
        self._started_at = started_at
        self._drafted = drafted
        self._starts = processes.starts_of(fleet.restarts)
        self._journal = journal
        self._on_failure: OnFailure = on_failure

    async def groups(self, observers: Sequence[Observer]) -> AsyncGenerator[Group, None]:
        """Sends the groups to the driver, and yields each once it is complete.

        Leaving early aborts the chunks in flight. Raises RolloutError at the end if groups were
        given up or if the journal is incomplete.
        """
        given_up: list[Group] = []
        own = [] if self._journal is None else [self._journal.observer]
        run = self._driver.open_run(
            [self.recorder, *own, *observers],
            rollout_id=self._rollout_id,
            started_at=self._started_at,
            on_failure=self._on_failure,
        )
        try:
            run.add(self._groups)
            for request in [] if self._journal is None else self._journal.restored.finished:
                run.restore(request)
                await asyncio.sleep(0)  # chunks are sent meanwhile
            run.complete()
            async for group in run:
                if group.failure is not None:
                    given_up.append(group)
                else:
                    yield in_order(group)
        finally:
            run.close()
            self.recorder.drafting = draft_report.section(
                self._drafted, await drafts_of(self._fleet)
            )
            self.recorder.processes = processes.section(self._starts, self._fleet.restarts)
        if self._journal is not None:
            self._journal.finish(report(self.recorder))
        raise_if_given_up(given_up, len(self._groups))
        if self._journal is not None and self._journal.error is not None:
            raise RolloutError(
                f"{self._journal.name}: {self._journal.error}: it lacks the end of the rollout, "
                "which is complete"
            )


async def drafts_of(fleet: Fleet) -> draft_report.FleetDraftCounters:
    """Returns the counters of drafting so far, of the engines and the hub."""
    drafters = [engine for engine in fleet.engines if engine.info.draft_tokens > 0]
    return await draft_report.read(drafters, fleet.drafts)


def in_order(group: Group) -> Group:
    """Returns a complete group with its samples in the order of their indices."""
    group.samples.sort(key=lambda sample: sample.index)
    return group


def raise_if_given_up(given_up: Sequence[Group], groups: int) -> None:
    """Raises RolloutError with the first reason if some of so many groups were given up."""
    if given_up:
        first = given_up[0]
        assert first.failure is not None
        raise RolloutError(
            f"{len(given_up)} of {groups} groups were given up; "
            f"the first, {first.group_id!r}: {first.failure.message}"
        )
