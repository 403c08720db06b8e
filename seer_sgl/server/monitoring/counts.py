"""The counts of a server over all its runs: single requests and rollouts."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.engine_types import EngineInfo, EngineLoad
from seer_sgl.report.counts import FleetCounts
from seer_sgl.server.passthrough.send import Passthrough
from seer_sgl.types import (
    Chunk,
    ChunkResult,
    Failure,
    FailureKind,
    Group,
    Request,
    RequestState,
    Sample,
)

from .histories import FleetHistory
from .latency import Latencies
from .tails import Tails

clock = time.monotonic
PASSTHROUGH = "passthrough"  # the finish reason of a request whose answer was not read


class GroupInProgress(msgspec.Struct):
    """A group with unfinished requests."""

    group: Group
    unfinished: int


class ServerCounts(FleetCounts):
    """Counts the events of all runs. Each event costs a few dictionary operations.

    `unfinished`: requests by uid, in the order of submission; `started`: those with a chunk, in the
    order of their first one; `running`: the engine of each request's chunk in flight. `ends`:
    requests that have ended, by finish reason or by why their group was given up. A request that a
    journal has restored complete only counts in the tail of its rollout.
    """

    def __init__(self, engines: Iterable[EngineInfo], latencies: Latencies) -> None:
        super().__init__(engines)
        self.unfinished: dict[str, Request] = {}
        self.started: dict[str, Request] = {}
        self.running: dict[str, str] = {}
        self.groups: dict[str, GroupInProgress] = {}  # by uid
        self.ends: Counter[str] = Counter()
        self.latencies = latencies
        self.tails = Tails(latencies.tail)
        self.history = FleetHistory(clock())

    @property
    def pending(self) -> int:
        """The number of unfinished requests without a chunk in flight."""
        return len(self.unfinished) - sum(uid in self.unfinished for uid in self.running)

    def oldest_s(self) -> float:
        """Returns the age of the oldest unfinished request in seconds; 0 without any."""
        oldest = next(iter(self.unfinished.values()), None)
        return 0.0 if oldest is None else max(0.0, clock() - oldest.submitted_at)

    @override
    def submitted(self, requests: Sequence[Request], now: float) -> None:
        if not requests:
            return
        group = requests[0].group
        unfinished = [r for r in requests if r.state is not RequestState.FINISHED]
        if unfinished:
            entry = self.groups.setdefault(group.uid, GroupInProgress(group, 0))
            entry.unfinished += len(unfinished)
        self.unfinished.update((request.uid, request) for request in unfinished)
        self.latencies.submitted(unfinished)
        name = group.uid.removesuffix(f"/{group.group_id}")  # driver/groups.py
        self.tails.submitted(group.caller, len(requests), name)

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        uid = chunk.request.uid
        self.running[uid] = chunk.engine_id
        if uid in self.unfinished:
            self.started.setdefault(uid, chunk.request)

    @override
    def streamed(self, request: Request, ids: object, logprobs: object) -> None:
        self.latencies.streamed(request, clock())

    @override
    def grown(self, result: ChunkResult) -> None:
        super().grown(result)
        self.running.pop(result.chunk.request.uid, None)
        if result.reply is not None:
            self.history.generated(clock(), len(result.reply.ids))

    @override
    def lost(self, result: ChunkResult) -> None:
        super().lost(result)
        self.running.pop(result.chunk.request.uid, None)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        now = clock()
        self.tails.finished(request.group.caller, now)
        if not self._end(request):  # restored: it ended in an earlier run
            return
        reason: str = request.finish_reason or "abort"
        if request.failure is not None:
            reason = request.failure.kind.value
        unread = request.passthrough is not None and reason != "abort"
        self.ends[PASSTHROUGH if unread else reason] += 1
        if reason in ("stop", "length") and (
            not isinstance(request.passthrough, Passthrough) or request.passthrough.served
        ):
            self.latencies.finished(request, now)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if failure is not None:
            given_up = sum(map(self._end, group.requests))
            self.ends[failure.kind.value] += given_up
            if failure.kind is not FailureKind.LEFT:  # its rollout ends before its last requests
                self.tails.gave_up(group.caller, given_up)
        self.groups.pop(group.uid, None)

    @override
    def ended(self, caller: str, now: float) -> None:
        self.tails.ended(caller)

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        super().loaded(engine_id, load, now)
        self.history.loaded(engine_id, load, now)
        self.history.unfinished(now, len(self.unfinished))

    @override
    def left(self, engine_id: str, now: float) -> None:
        self.engines.pop(engine_id, None)
        self.history.left(engine_id)

    def _end(self, request: Request) -> bool:
        """Forgets an unfinished request. Returns whether it was one."""
        if self.unfinished.pop(request.uid, None) is None:
            return False
        self.started.pop(request.uid, None)
        self.latencies.forget(request)
        entry = self.groups.get(request.group.uid)
        if entry is not None:
            entry.unfinished -= 1
            if entry.unfinished <= 0:
                del self.groups[request.group.uid]
        return True
