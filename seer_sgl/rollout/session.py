"""`RolloutSession`: one rollout on a driver, from its checked groups to its report."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from seer_sgl.driver.driver import Driver
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import RolloutError
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import FailureKind, Group, OnFailure, RequestState

from .journaled import RolloutJournal, Start


class RolloutSession:
    """The groups of one rollout, its run on the driver, its record, and its journal if it has one.

    groups: checked, and restored from the `journal`, which is open. `maker`: made them, and makes
    further ones. `started_at`: the zero of the rollout's times, on the driver's clock.
    """

    def __init__(
        self,
        driver: Driver,
        groups: Sequence[Group],
        maker: GroupMaker,
        *,
        start: Start,
        started_at: float,
        journal: RolloutJournal | None,
        on_failure: OnFailure,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.rollout_id = start.rollout_id
        self.seed = start.seed
        self.started_at = started_at
        self._groups = groups
        self.maker = maker
        self.journal = journal
        self.recorder = Recorder(start.rollout_id, start.seed, driver.engines, groups, started_at)
        if journal is not None:
            journal.mark(self.recorder)
        own = [] if journal is None else [journal.observer]
        self.run = driver.open_run(
            [self.recorder, *own, *observers],
            rollout_id=start.rollout_id,
            started_at=started_at,
            on_failure=on_failure,
        )
        self._given_up: list[Group] = []

    def take(self) -> Sequence[Group]:
        """Returns the groups to send, once: a group that is taken and complete is its caller's."""
        groups, self._groups = self._groups, []
        return groups

    async def roll(self) -> AsyncGenerator[Group, None]:
        """Sends all groups to the driver, and yields each once it is complete."""
        self.run.add(self.take())
        for request in [] if self.journal is None else self.journal.restored.finished:
            self.run.restore(request)
            await asyncio.sleep(0)  # chunks are sent meanwhile
        self.run.complete()
        async for group in self.run:
            if group.failure is not None:
                self._given_up.append(group)
            else:
                yield in_order(group)

    def submit(self, group: Group) -> None:
        """Sends one group to the driver; the samples that it has already are reported."""
        self.run.add([group])
        for request in group.requests:
            if request.state is RequestState.FINISHED:
                self.run.restore(request)

    def extend(self, groups: Sequence[Group]) -> None:
        """Counts groups that were not there at the start, and writes them to the journal."""
        if self.journal is not None and groups:
            self.journal.observer.extend(groups)
        self.recorder.groups += len(groups)
        self.recorder.requests += sum(len(group.requests) for group in groups)

    def report(self) -> dict[str, Any]:
        """Returns the report so far."""
        return report(self.recorder)

    def finish(self) -> None:
        """Completes the journal after `roll`, unless groups were left: another run continues them.

        Raises RolloutError if groups were given up or if the journal is incomplete.
        """
        left = any(
            group.failure is not None and group.failure.kind is FailureKind.LEFT
            for group in self._given_up
        )
        if self.journal is not None and not left:
            self.journal.finish(self.report())
        raise_if_given_up(self._given_up, self.recorder.groups)
        if self.journal is not None and self.journal.error is not None:
            raise RolloutError(
                f"{self.journal.name}: {self.journal.error}: it lacks the end of the rollout, "
                "which is complete"
            )


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
