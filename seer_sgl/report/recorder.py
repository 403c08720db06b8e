"""Records a rollout as compact time series and counters.

The cost is a few appends per chunk. The report and the timeline are computed from them at the end.
"""

import bisect
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import override

from seer_sgl.chunk_figures import Totals
from seer_sgl.driver.health import State
from seer_sgl.driver.observer import Observer
from seer_sgl.engine_types import EngineInfo, EngineLoad
from seer_sgl.errors import BadReply, ChunkRecalled
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

LONGEST_POLL_S = 15.0  # a poll without an answer takes 10 s; beyond that, the engine was out


class EngineRecord:
    """The record of one engine.

    A time series is a pair of equally long arrays, with times in seconds since the rollout began.
    """

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.totals = Totals()  # of the chunks that came back
        self.lost_chunks = 0
        self.bad_replies = 0  # of the lost chunks
        self.inflight = 0
        self.inflight_at = array("d")
        self.inflight_count = array("i")
        self.load_at = array("d")  # the four series below; the engine counts all its clients
        self.used_tokens = array("q")
        self.running = array("q")
        self.queued = array("q")  # requests that wait for room inside the engine
        self.kv_waiting = array("q")  # requests that wait there for KV, although there is room
        self.kv_wait_s = 0.0  # the time that they waited so, request-seconds
        self.states: list[tuple[float, State, str]] = []  # changes: seconds, state, reason

    def step(self, now: float, change: int) -> None:
        """Records that one chunk more (+1) or less (-1) is in flight from `now` on."""
        self.inflight += change
        self.inflight_at.append(now)
        self.inflight_count.append(self.inflight)


class Recorder(Observer):
    """Records the events of one rollout for the report and the timeline.

    `groups`: all groups, complete or not; `started_at`: on the loop's clock.
    """

    def __init__(
        self,
        rollout_id: str,
        seed: int,
        engines: Iterable[EngineInfo],
        groups: Sequence[Group],
        started_at: float,
    ) -> None:
        self.rollout_id = rollout_id
        self.seed = seed
        self.started_at = started_at
        self.groups = len(groups)
        self.requests = sum(len(group.requests) for group in groups)
        self.finished_groups = 0
        self.engines = {info.engine_id: EngineRecord(info) for info in engines}
        self.totals = Totals()  # of the chunks that came back
        self.store_s = array("d")  # seconds from a reply until its KV is in the pool
        self.unstored = 0  # chunks whose KV did not completely reach the pool
        self.finish_reasons: Counter[str] = Counter()
        self.finished_at = array("d")  # ascending
        self.response_lens = array("i")  # of finished requests
        self.failed_requests = 0
        self.given_up = 0  # requests without a whole sample, of groups that have ended
        self.retries = 0
        self.wasted_tokens = 0  # came back and are in no sample
        self._lost: set[str] = set()  # uids of requests whose newest chunk was lost
        self.drafting: dict[str, Any] | None = None  # the report's section, set after the run
        self.processes: list[dict[str, Any]] = []  # the report's section, set after the run
        self.resumed: dict[str, Any] | None = None  # the report's section, of a resumed rollout
        self.begun_s = 0.0  # when this process began, in the time of the rollout

    @property
    def awaited(self) -> int:
        """The requests that have finished or still may: none that was given up."""
        return self.requests - self.given_up

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.engines[chunk.engine_id].step(now - self.started_at, +1)
        if chunk.request.uid in self._lost:
            self._lost.discard(chunk.request.uid)
            self.retries += 1

    @override
    def lost(self, result: ChunkResult) -> None:
        engine = self.engines[result.chunk.engine_id]
        engine.step(result.now - self.started_at, -1)
        engine.lost_chunks += 1
        engine.bad_replies += isinstance(result.error, BadReply)
        self.wasted_tokens += result.dropped
        if not isinstance(result.error, ChunkRecalled):
            self._lost.add(result.chunk.request.uid)

    @override
    def grown(self, result: ChunkResult) -> None:
        engine = self.engines[result.chunk.engine_id]
        engine.step(result.now - self.started_at, -1)
        if result.figures is not None:
            self.totals.add(result.figures)
            engine.totals.add(result.figures)

    @override
    def stored(self, request: Request, complete: bool, after_s: float, now: float) -> None:
        if complete:
            self.store_s.append(after_s)
        else:
            self.unstored += 1

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self._lost.discard(request.uid)
        if sample.failure is not None:
            self.failed_requests += 1
            return
        # Restored requests are reported while others already finish.
        bisect.insort(self.finished_at, (request.finished_at or 0.0) - self.started_at)
        self.response_lens.append(request.generated)
        self.finish_reasons[request.finish_reason or "abort"] += 1

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self.finished_groups += failure is None
        left = failure is not None and failure.kind is FailureKind.LEFT
        for request in group.requests:
            self._lost.discard(request.uid)
            whole = request.state is RequestState.FINISHED and request.failure is None
            self.given_up += not (whole or left)
            if request.state is not RequestState.FINISHED:
                self.wasted_tokens += request.sampled

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        self.engines.setdefault(info.engine_id, EngineRecord(info))

    @override
    def health(self, engine_id: str, state: State, why: str, now: float) -> None:
        self.engines[engine_id].states.append((now - self.started_at, state, why))

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        engine, at = self.engines[engine_id], now - self.started_at
        if engine.load_at:
            engine.kv_wait_s += load.kv_waiting * min(at - engine.load_at[-1], LONGEST_POLL_S)
        engine.load_at.append(at)
        engine.used_tokens.append(load.used_tokens)
        engine.running.append(load.running)
        engine.queued.append(load.queued)
        engine.kv_waiting.append(load.kv_waiting)
