"""A simulated engine behind the driver's Engine protocol: a Batch on the event loop's clock."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

from typing_extensions import override

from seer_sgl.driver.engine import Engine
from seer_sgl.engine_types import EngineInfo, EngineLoad, EngineProblem
from seer_sgl.link.server import OnRates, OnStored
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    Move,
    OnTokens,
    Request,
    RequestState,
    WeightSpan,
)

from .batch import SimulatedBatch
from .cache import SimulatedPool
from .config import SimConfig, page_size
from .job import Job
from .speculation import Speculation, most_drafts
from .steps import StepTime
from .tokens import ids, logprobs

VERSION = "simulated"
MAX_REQUEST_SLACK = 6  # SGLang accepts inputs of up to max_total_num_tokens - 6

Stored = Callable[[str, bool], None]


class _Call(NamedTuple):
    """A chunk on the engine; `done` is set when its job has ended."""

    job: Job
    done: asyncio.Future[None]


class SimulatedEngine(Engine):
    """A simulated engine. `lengths`: response tokens of each request, by uid; `pool`: shared by all
    engines.

    `stored` is called for every chunk whose KV has reached the pool (a message on the real link).
    """

    def __init__(
        self,
        engine_id: str,
        config: SimConfig,
        lengths: Mapping[str, int],
        stored: Stored,
        pool: SimulatedPool,
    ) -> None:
        self._config = config
        self._lengths = lengths
        self._stored = stored
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._step = StepTime(config.engine)
        self._speculation = Speculation(config.speculation, self._step)
        self._batch = SimulatedBatch(config.engine, self._step, self._speculation)
        self._calls: dict[str, _Call] = {}  # by rid
        self._fetching: set[str] = set()  # rids of chunks whose KV is read from the pool
        self._timer: asyncio.TimerHandle | None = None
        self._link_free_at = 0.0
        self._info = engine_info(engine_id, config)
        self.wasted_tokens = 0  # decoded, and in no reply that the driver received

    @property
    @override
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> str:
        """The version of its weights."""
        return VERSION

    @property
    def forward_steps(self) -> int:
        """Batches that it ran, of any kind."""
        return self._batch.forward_steps

    @override
    async def abort(self, chunk: Chunk) -> None:
        call = self._calls.get(chunk.rid)
        if call is None or call.done.done():
            return
        job, written = call.job, self._batch.abort(chunk.rid, self._now())
        self._set_timer()
        job.tokens, job.aborted = min(written, job.tokens - 1), True
        call.done.set_result(None)

    @override
    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        job = self._job(chunk)
        if job.fetched:
            self._fetching.add(job.rid)
            try:
                await self._fetch(job.fetched)
            finally:
                self._fetching.remove(job.rid)
        done = self._loop.create_future()
        self._calls[job.rid] = _Call(job, done)
        try:
            self._batch.add(job, self._now())
            self._set_timer()
            await done
        except asyncio.CancelledError:
            self._discard(job.rid)
            raise
        finally:
            del self._calls[job.rid]
        self._store(job)
        return self._reply(job)

    @override
    async def load(self) -> EngineLoad:
        now, running, queued = self._now(), len(self._batch.running), self._batch.waiting
        for_room = len(self._fetching) if self._batch.full else 0
        return EngineLoad(
            used_tokens=int(self._batch.held(now)),
            progress=(now,) if running + queued else ("idle",),
            running=running,
            queued=queued + for_room,
            kv_waiting=len(self._fetching) - for_room,
        )

    @override
    async def waiting(self) -> Sequence[str]:
        return sorted(self._fetching)

    @override
    async def problem(self, weight_version: str | None = None) -> EngineProblem | None:
        return None

    @override
    async def refresh(self) -> EngineInfo:
        return self._info

    def _job(self, chunk: Chunk) -> Job:
        request = chunk.request
        tokens = min(self._lengths[request.uid] - request.generated, chunk.max_new_tokens)
        pooled = self._pooled(chunk)
        here = self._batch.idle_cache.length(request.uid)
        fetched = pooled if here < pooled else 0
        alpha = 0.0
        if self._speculation.enabled:
            alpha = self._speculation.acceptance(references(request))
        whole = request.total_len <= pooled
        return Job(chunk, tokens, pooled=whole, fetched=fetched, alpha=alpha)

    def _pooled(self, chunk: Chunk) -> int:
        """Returns the tokens of a chunk's input whose KV is in the pool.

        SGLang looks up every missing page there, for all requests.
        """
        unread = chunk.move is Move.PREFILL or not chunk.reads
        return 0 if unread else self._pool.length(chunk.request.uid)

    async def _fetch(self, tokens: int) -> None:
        """Reads KV from the pool; the engine's network link transfers one fetch at a time."""
        pool, now = self._config.pool, self._loop.time()
        seconds = tokens * self._config.engine.kv_bytes_per_token / (pool.gb_s * 1e9)
        self._link_free_at = max(now, self._link_free_at) + seconds
        await asyncio.sleep(self._link_free_at - now + pool.latency_ms * 1e-3)

    def _store(self, job: Job) -> None:
        if not self._config.pool.enabled:
            return
        request = job.chunk.request
        if request.generated + job.tokens >= self._lengths[job.uid]:
            self._pool.take(job.uid)  # nothing will read it
        else:
            self._pool.put(job.uid, request.total_len + job.tokens)
        delay_s = self._config.pool.store_ms * 1e-3
        self._loop.call_later(delay_s, self._stored, job.rid, True)

    def _discard(self, rid: str) -> None:
        """Ends a chunk whose reply is not wanted."""
        self.wasted_tokens += self._batch.abort(rid, self._now())
        self._set_timer()

    def _now(self) -> float:
        """Returns the time on the engine's own clock."""
        return self._loop.time()

    def _loop_time(self, time: float) -> float:
        """Returns the time on the event loop's clock for a later time on the engine's."""
        return time

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._batch.wake_at is not None:
            self._timer = self._loop.call_at(self._loop_time(self._batch.wake_at), self._turn)

    def _turn(self) -> None:
        for job in self._batch.turn(self._now()):
            call = self._calls.get(job.rid)
            if call is not None and not call.done.done():
                call.done.set_result(None)
            else:
                self.wasted_tokens += job.tokens
        self._set_timer()

    def _reply(self, job: Job) -> ChunkReply:
        request, whole, version = job.chunk.request, self._lengths[job.uid], self.version
        stops = whole < request.max_response_len and request.generated + job.tokens >= whole
        source, first = token_source(job.uid, version), request.generated
        return ChunkReply(
            ids=ids(source, first, job.tokens),
            logprobs=logprobs(source, first, job.tokens),
            weight_spans=[WeightSpan(version, job.tokens)],
            finish="abort" if job.aborted else "stop" if stops else "length",
            cached_device=job.device,
            cached_host=job.host,
            cached_storage=job.storage,
            retractions=job.retractions,
            verify_steps=job.steps if job.alpha else 0,
        )


class SimulatedFleet:
    """The config's number of engines, and their link. `lengths`: response tokens of each request,
    by uid."""

    def __init__(self, config: SimConfig, lengths: Mapping[str, int]) -> None:
        self.on_stored: OnStored = lambda *_: None
        self.on_rates: OnRates = lambda _: None
        self.drafts = None
        capacity_gb = config.pool.capacity_gb
        token_gb = config.engine.kv_bytes_per_token / 1e9
        self.pool = SimulatedPool(math.inf if capacity_gb is None else capacity_gb / token_gb)
        self.engines = [
            self._engine(f"e{number}", config, lengths) for number in range(config.engine.count)
        ]

    @property
    def link(self) -> Self:
        """The link that its engines report to."""
        return self

    def forget(self, instance: str, uid: str, keep: int) -> None:
        """Does nothing: an engine releases the KV of a request when it ends."""

    async def live(self) -> None:
        """Lets the fleet's own events happen, until cancelled: there are none."""

    def _engine(
        self, engine_id: str, config: SimConfig, lengths: Mapping[str, int]
    ) -> SimulatedEngine:
        return SimulatedEngine(engine_id, config, lengths, self._stored, self.pool)

    def _stored(self, rid: str, complete: bool) -> None:
        self.on_stored(rid, complete)


def token_source(uid: str, version: str = VERSION) -> str:
    """Returns what determines the tokens of a response: its request and the weights."""
    return f"{uid}, weights {version}"


def references(request: Request) -> int:
    """Returns the number of siblings to draft from: finished ones and those at least as long."""
    return sum(
        sibling is not request
        and (
            sibling.state is RequestState.FINISHED
            or (sibling.generated > 0 and sibling.generated >= request.generated)
        )
        for sibling in request.group.requests
    )


def engine_info(engine_id: str, config: SimConfig) -> EngineInfo:
    """Returns an engine's own description, like that of `/server_info`."""
    engine = config.engine
    return EngineInfo(
        engine_id=engine_id,
        url="",
        sglang_version=VERSION,
        model_path="",
        max_total_num_tokens=engine.kv_tokens,
        max_running_requests=engine.max_running_requests,
        max_request_len=engine.kv_tokens - MAX_REQUEST_SLACK,
        page_size=page_size(config),
        radix_cache=True,
        weight_version=VERSION,
        deterministic=False,
        has_tokenizer=False,
        plugin=VERSION,
        pool=VERSION if config.pool.enabled else None,
        kv_bytes_per_token=int(engine.kv_bytes_per_token),
        draft_tokens=most_drafts(config.speculation) + 1 if config.speculation.enabled else 0,
    )
