"""`Run`: the groups of one `submit`, while a driver rolls them out."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from seer_sgl.errors import RolloutError
from seer_sgl.types import Group, OnFailure, Request

from .observer import Observer
from .samples import SampleMaker

if TYPE_CHECKING:
    from .open_runs import OpenRuns


class Run:
    """An async iterator of ended groups: complete, or given up with a `failure`.

    While it is `open`, more groups may be added. Raises RolloutError when the driver has ended.
    `own_observers`: of this run; `standing`: of all runs, also after this one is closed.
    """

    def __init__(
        self,
        runs: "OpenRuns",
        make_sample: SampleMaker,
        own_observers: Sequence[Observer],
        caller: str,
        standing: Sequence[Observer] = (),
        *,
        on_failure: OnFailure = "group",
    ) -> None:
        self.own_observers = own_observers
        self._standing = standing
        self.make_sample = make_sample
        self.caller = caller
        self.on_failure = on_failure
        self.open = True
        self.unfinished: dict[str, Group] = {}  # by uid
        self._runs = runs
        # None: the run has ended, and a waiting iterator ends too.
        self._ended: asyncio.Queue[Group | RolloutError | None] = asyncio.Queue()
        self._error: RolloutError | None = None

    def observe(self, observer: Observer) -> None:
        """Adds an observer of this run."""
        self.own_observers = [*self.own_observers, observer]

    @property
    def observers(self) -> list[Observer]:
        """All observers that receive the run's events."""
        return [*self._standing, *self.own_observers]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        while True:
            if self._ended.empty() and self._error is not None:
                raise self._error
            if self._ended.empty() and not self.unfinished and not self.open:
                raise StopAsyncIteration
            group = await self._ended.get()
            if isinstance(group, RolloutError):
                raise group
            if group is not None:
                return group

    def add(self, groups: Sequence[Group]) -> None:
        """Starts the rollout of more groups.

        Raises ValueError if the run is complete, or if the uid of a group or a request is already
        in use; then nothing has changed.
        """
        self._runs.add(self, groups)

    def restore(self, request: Request) -> None:
        """Makes the sample of a request that was finished when it was added, and reports it."""
        self._runs.restore(self, request)

    def complete(self) -> None:
        """Marks the run as complete: no more groups follow."""
        self._runs.complete(self)

    def grow(self, group: Group, requests: Sequence[Request]) -> None:
        """Adds requests to a growing group. Raises ValueError if the group no longer grows."""
        self._runs.grow(self, group, requests)

    def complete_group(self, group: Group) -> None:
        """Marks a growing group as complete: no more requests follow."""
        self._runs.complete_group(self, group)

    def prefer(self, group: Group) -> None:
        """Sends a group's requests before those of its caller's other groups from now on."""
        self._runs.prefer(group)

    def abort(self, request: Request) -> None:
        """Ends a request early, with the tokens that its engine returns.

        Its sample has the finish reason `abort`.
        """
        self._runs.abort(request)

    def close(self) -> None:
        """Gives up the unfinished groups and aborts their chunks in flight."""
        self._runs.close(self)

    def wake(self) -> None:
        """Wakes a waiting iterator: the run may have ended (open_runs.py)."""
        self._ended.put_nowait(None)

    def ended(self, group: Group) -> None:
        """Queues a group that is complete or given up (open_runs.py)."""
        self._ended.put_nowait(group)

    def fail(self, error: RolloutError) -> None:
        """Ends the iteration with an error, because the driver has ended (open_runs.py)."""
        self._error = error
        self._ended.put_nowait(error)
