"""`ServedRollout`: one rollout of a client, from its groups to the lines of its stream."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from typing_extensions import override

from seer_sgl.driver.driver import Driver
from seer_sgl.driver.observer import Observer
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import RolloutError
from seer_sgl.rollout.journaled import RolloutJournal
from seer_sgl.rollout.session import RolloutSession
from seer_sgl.types import Failure, Group, Request, RequestState, Sample

from .errors import Conflict
from .rollout_body import RolloutBody
from .rollout_tally import End, RolloutTally

# Requests submitted ahead of the reader, as a multiple of what the engines can run at once: while
# one such number decodes, another is ready, so that no engine waits and the policy has a choice.
AHEAD = 2
REACHED = ("complete", "target", "exhausted")  # the ends of a rollout that need not continue
clock = time.monotonic


class ServedRollout(Observer):
    """A rollout whose groups go to the driver as its reader takes finished ones.

    Groups are submitted while fewer than AHEAD times the engines' slots of requests are submitted
    and not taken by the reader; at least one group is. So a reader that keeps up has every group
    of a rollout of that size in the scheduler from the start, and one that stops holds back the
    groups that were not submitted; submitted ones are decoded to their end and wait in memory.

    options: the body without its prompts. `session`: of which nothing is sent yet; the rollout
    closes its journal. `released` receives numbers of responses that are no longer in progress, and
    `ended` is called once.
    """

    def __init__(
        self,
        options: RolloutBody,
        session: RolloutSession,
        driver: Driver,
        *,
        max_inflight: int | None,
        released: Callable[[int], None],
        ended: Callable[["ServedRollout"], None],
    ) -> None:
        groups = session.take()
        self.options = options
        self.rollout_id = session.rollout_id
        self.seed = session.seed
        self.tally = RolloutTally(len(groups), options.target_groups, options.dynamic_filtering)
        self.started_at = session.started_at
        self.ended_at: float | None = None
        self.end: End | None = None
        self.error: str | None = None
        self.requests = sum(len(group.requests) for group in groups)
        self.finished_requests = 0
        self.totals = session.recorder.totals  # of the chunks that came back
        self.delivered = 0  # groups that the reader has taken
        self.report: dict[str, Any] | None = None  # once it has ended
        self.resumed = session.recorder.resumed  # as in the report
        self.running: dict[str, Group] = {}  # submitted and unfinished, by group id
        self._waiting = deque(sorted(groups, key=_completed_at))  # restored ones in their order
        self._ahead = 0  # requests of groups that are submitted and not taken
        self._preferred: set[str] = set()
        self._reserved = self.requests
        self._driver = driver
        self._max_inflight = max_inflight
        self._session: RolloutSession | None = session  # until the report is made
        self.run = session.run
        self.run.observe(self)
        self._released = released
        self._when_ended = ended
        self._events: asyncio.Queue[Group | Sample | None] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """The number of groups that are held back."""
        return len(self._waiting)

    @property
    def window(self) -> int:
        """The number of requests that may be submitted and not taken by the reader."""
        return AHEAD * sum(self._slots(info) for info in self._driver.engines)

    async def watch(self) -> None:
        """Returns when the run has ended; ends the rollout if the driver has ended."""
        try:
            async for group in self.run:
                if self.end is not None:  # else its reader is to take it
                    group.requests = []
        except RolloutError as error:
            self.finish("failed", str(error))

    def fill(self) -> None:
        """Submits the groups that the reader leaves room for."""
        while self._waiting and self._ahead < self.window and self.end is None:
            self._submit()

    async def events(self) -> AsyncIterator[Group | Sample]:
        """Yields finished samples, if wanted, and ended groups; returns at the end."""
        while (event := await self._events.get()) is not None:
            yield event

    def drop_events(self) -> None:
        """Drops what the reader has not taken: an ended rollout is remembered for an hour."""
        while not self._events.empty():
            self._events.get_nowait()

    def taken(self, group: Group) -> None:
        """Records that the reader has an ended group, and breaks its cycle of references."""
        self.delivered += 1
        self._ahead -= len(group.requests)
        group.requests = []
        self.fill()

    def accept(self, group_id: str) -> None:
        """Makes a complete group count. Raises HttpError if it cannot."""
        self._require_open()
        self.tally.accept(group_id)
        self._check_end()

    def reject(self, group_id: str, more: Sequence[Group]) -> str | None:
        """Takes a complete group back, and adds groups. Raises HttpError if it cannot.

        Returns the unfinished group that goes ahead in its place; None if there is none.
        """
        self._require_open()
        self.tally.reject(group_id)
        self._add(more)
        replacement = None if self.tally.target is None else self._replacement()
        if replacement is not None:
            self._preferred.add(replacement.group_id)
            self.run.prefer(replacement)
        self.fill()
        self._check_end()
        return None if replacement is None else replacement.group_id

    def finish(self, how: End, error: str | None = None) -> None:
        """Ends the rollout: its unfinished groups are aborted. Nothing happens if it has ended."""
        if self.end is not None:
            return
        self.end, self.error, self.ended_at = how, error, clock()
        while self._waiting:
            self._waiting.popleft().requests = []
        self._events.put_nowait(None)
        self._release(self._reserved)
        self._close()  # at once: the report counts no group that the last line does not
        self._when_ended(self)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if self.end is None:
            self.finished_requests += 1
            self._release(1)
            if self.options.stream == "samples":
                self._events.put_nowait(sample)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self.running.pop(group.group_id, None)
        if self.end is not None:
            return
        if failure is None:
            self.tally.complete[group.group_id] = None
        else:
            self.tally.failed[group.group_id] = None
            self._release(sum(r.state is not RequestState.FINISHED for r in group.requests))
        self._events.put_nowait(group)
        self._check_end()

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        asyncio.get_running_loop().call_soon(self.fill)

    def _add(self, groups: Sequence[Group]) -> None:
        requests = sum(len(group.requests) for group in groups)
        self._require_open().extend(groups)
        self._waiting.extend(groups)
        self.tally.total += len(groups)
        self.requests += requests
        self._reserved += requests

    def _submit(self) -> Group:
        group = self._waiting.popleft()
        self.running[group.group_id] = group
        self._ahead += len(group.requests)
        now = clock()
        for request in group.requests:
            if not request.engines:  # else restored, with the time of its first process
                request.submitted_at = now
        self._require_open().submit(group)
        return group

    def _replacement(self) -> Group | None:
        """Returns the unfinished group that is nearest to its end; else a new one, submitted."""
        rest = [group for name, group in self.running.items() if name not in self._preferred]
        if rest:
            return min(rest, key=_distance)
        return self._submit() if self._waiting else None

    def _require_open(self) -> RolloutSession:
        """Returns the session. Raises Conflict if the rollout has ended."""
        if self.end is not None or self._session is None:
            raise Conflict(f"rollout {self.rollout_id!r} has ended: {self.end}")
        return self._session

    def _check_end(self) -> None:
        end = self.tally.end
        if end is not None:
            self.finish(end)

    def _release(self, count: int) -> None:
        self._reserved -= count
        self._released(count)

    def _close(self) -> None:
        session, self._session = self._session, None
        assert session is not None
        session.run.close()
        self.running.clear()
        self.report = session.report()
        if session.journal is not None:
            # Not here: it waits for the disk.
            asyncio.get_running_loop().run_in_executor(None, self._end_journal, session.journal)

    def _end_journal(self, journal: RolloutJournal) -> None:
        # With a target some groups may be left: a resume without one continues with them.
        if self.end in REACHED and self.report is not None and not self.tally.unfinished:
            journal.finish(self.report)
        journal.close()

    def _slots(self, info: EngineInfo) -> int:
        most = info.max_running_requests
        return most if self._max_inflight is None else min(most, self._max_inflight)


def _completed_at(group: Group) -> float:
    """Returns the sort key by which restored groups are delivered in their order, then others."""
    ends = [request.finished_at for request in group.requests if request.finished_at is not None]
    return max(ends) if group.complete else math.inf


def _distance(group: Group) -> tuple[int, int]:
    """Returns the sort key of how far a group is from its end."""
    unfinished = sum(request.state is not RequestState.FINISHED for request in group.requests)
    return unfinished, -sum(request.generated for request in group.requests)
