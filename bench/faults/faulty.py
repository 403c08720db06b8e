"""A simulated engine that fails: it dies, hangs, is cut off or reads no KV; its messages fail.

`SimulatedEngine` is an engine and its client in one. What a client notices of a failure, and when,
follows the client of a real engine (engine/client.py).
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.engine_types import EngineInfo, EngineLoad, EngineProblem
from seer_sgl.errors import BadReply, EngineUnavailable
from seer_sgl.sim.batch import SimulatedBatch
from seer_sgl.sim.cache import SimulatedPool
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import VERSION, SimulatedEngine, Stored
from seer_sgl.sim.job import Job
from seer_sgl.types import Chunk, ChunkReply, OnTokens, Request, RequestState

from .faults import Kind
from .messages import FleetFaults, MessageFaults
from .outages import Connection, EngineClock

OTHER_VERSION = "other"  # of the weights that an engine must not serve
CONTROL_TIMEOUT_S = 10.0  # timing.py
HEALTH_TIMEOUT_S = 30.0  # engine/client.py
ABORT_TIMEOUT_S = 2.0


class FaultyEngine(SimulatedEngine):
    """An engine with outages (`strike`) and with faults of single messages."""

    def __init__(
        self,
        engine_id: str,
        config: SimConfig,
        lengths: Mapping[str, int],
        stored: Stored,
        pool: SimulatedPool,
        *,
        faults: FleetFaults,
    ) -> None:
        super().__init__(engine_id, config, lengths, stored, pool)
        self._counts = faults.counts
        self._messages = MessageFaults(faults, engine_id)
        self._clock = EngineClock(self._set_timer)
        self._connection = Connection()
        self._reads = Connection()  # down while reads of KV stand still
        self._instance = 0  # starts of the server
        self._noticed = 0  # the newest of them that the client has noticed
        self._up_at = 0.0  # it is down until then
        self._right_at = 0.0  # it has other weights until then
        self._lost: dict[str, asyncio.Future[None]] = {}  # calls without a reply, by rid
        self._again: str | None = None  # the rid of an old reply that comes once more
        self._prefilled_before = 0  # by earlier instances

    @property
    @override
    def version(self) -> str:
        return OTHER_VERSION if self._loop.time() < self._right_at else VERSION

    @property
    def prefilled_tokens(self) -> int:
        """Input tokens that were computed, also by earlier instances."""
        return self._prefilled_before + self._batch.prefilled

    def strike(self, kind: Kind, seconds: float, other_weights: bool = False) -> None:
        """Begins an outage, or prolongs one. An engine that is down cannot hang."""
        if kind == "hang" and self._down:
            return
        self._counts[kind] += 1
        until = self._loop.time() + seconds
        if kind == "cut":
            self._connection.cut(until)
        elif kind == "reads":
            self._reads.cut(until)
        elif kind == "hang":
            self._clock.freeze(until)
            self._set_timer()
        else:
            self._die(until, seconds if other_weights else 0.0)

    @override
    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        await self._connection.restored()
        if self._down:
            raise self._unavailable("connection refused")
        if self._again is not None:
            rid, self._again = self._again, None
            raise BadReply(f"engine {self.info.engine_id}: the reply is to {rid}, not {chunk.rid}")
        try:
            reply = await super().generate(chunk)
        except EngineUnavailable:
            await self._connection.restored()
            raise
        try:
            await self._travel(chunk.rid)
            if reply.weight_spans[-1].version != self.info.weight_version:
                raise self._unavailable("it was restarted")
        except (EngineUnavailable, asyncio.CancelledError):
            self.wasted_tokens += len(reply.ids)
            raise
        return reply

    @override
    async def abort(self, chunk: Chunk) -> None:
        if not self._connection.up:
            await asyncio.sleep(ABORT_TIMEOUT_S)
        elif not self._down and not self._clock.frozen:
            await super().abort(chunk)

    @override
    async def load(self) -> EngineLoad:
        await self._control()
        if self._noticed != self._instance:
            self._noticed = self._instance
            raise self._unavailable("it was restarted")
        load = await super().load()
        requests = load.running + load.queued + load.kv_waiting
        return msgspec.structs.replace(
            load, requests=requests, prefilled_tokens=self._batch.prefilled
        )

    @override
    async def waiting(self) -> Sequence[str]:
        await self._control()
        if self._clock.frozen:
            await asyncio.sleep(CONTROL_TIMEOUT_S)
        if self._clock.frozen:
            raise self._unavailable("no answer")
        return await super().waiting()

    @override
    async def problem(self, weight_version: str | None = None) -> EngineProblem | None:
        try:
            await self._control()
            if self._clock.frozen:
                await asyncio.sleep(HEALTH_TIMEOUT_S)
            if self._clock.frozen:
                raise self._unavailable("no answer on /health")
            if self.version != (weight_version or self.info.weight_version):
                raise self._unavailable("it came back with another weight_version")
        except EngineUnavailable as error:
            return EngineProblem(str(error))
        self._noticed = self._instance
        return None

    @override
    async def refresh(self) -> EngineInfo:
        await self._control()
        return await super().refresh()

    @property
    def _down(self) -> bool:
        return self._loop.time() < self._up_at

    def _unavailable(self, why: str) -> EngineUnavailable:
        engine_id = self.info.engine_id
        return EngineUnavailable(f"engine {engine_id}: {why}", engine_id=engine_id)

    async def _control(self) -> None:
        """Sends a control call. Raises EngineUnavailable if it is not answered."""
        if not self._connection.up:
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_S):
                    await self._connection.restored()
            except TimeoutError as error:
                raise self._unavailable("no answer") from error
        if self._down:
            raise self._unavailable("connection refused")

    async def _travel(self, rid: str) -> None:
        """Returns when the reply reaches the client, if it does."""
        fate = self._messages.reply()
        if fate.copies == 0:
            lost = self._lost[rid] = self._loop.create_future()
            try:
                await lost  # fails when the server dies
            finally:
                del self._lost[rid]
        if fate.copies == 2:
            self._again = rid
        if fate.delay_s:
            await asyncio.sleep(fate.delay_s)
        await self._connection.restored()

    @override
    async def _fetch(self, tokens: int) -> None:
        instance = self._instance
        await super()._fetch(tokens)
        await self._reads.restored()
        if instance != self._instance:
            raise self._unavailable("connection reset")

    @override
    def _pooled(self, chunk: Chunk) -> int:
        # Also for Move.PREFILL: after a lost chunk SGLang finds the pages of the chunks before it.
        return self._pool.length(chunk.request.uid) if chunk.reads else 0

    @override
    def _store(self, job: Job) -> None:
        if not self._config.pool.enabled:
            return
        request, ack = job.chunk.request, self._messages.ack()
        delay_s = self._config.pool.store_ms * 1e-3
        if request.generated + job.tokens >= self._lengths[job.uid]:
            self._pool.take(job.uid)  # nothing will read it
        elif ack.present:
            length = request.total_len + job.tokens
            self._loop.call_later(delay_s, self._write, request, length, self._instance)
        for _ in range(ack.fate.copies):
            late_s = delay_s + ack.fate.delay_s
            self._loop.call_later(late_s, self._acknowledge, job.rid, ack.complete, self._instance)

    def _write(self, request: Request, length: int, instance: int) -> None:
        """Writes the KV of a request into the pool, unless the server that had it has ended."""
        if instance == self._instance and request.state is not RequestState.FINISHED:
            self._pool.put(request.uid, length)

    def _acknowledge(self, rid: str, complete: bool, instance: int) -> None:
        """Acknowledges a write, unless the server that made it has ended."""
        if instance == self._instance:
            self._connection.call_when_up(self._stored, rid, complete)

    @override
    def _discard(self, rid: str) -> None:
        # During a cut the server does not notice that its client has left.
        self._connection.call_when_up(super()._discard, rid)

    @override
    def _now(self) -> float:
        return self._clock.now()

    @override
    def _loop_time(self, time: float) -> float:
        return self._clock.loop_time(time)

    @override
    def _set_timer(self) -> None:
        super()._set_timer()
        if self._clock.frozen and self._timer is not None:
            self._timer.cancel()

    def _die(self, until: float, other_weights_s: float) -> None:
        """Ends the server; the next one starts at `until`, and first has other weights."""
        self._up_at = max(self._up_at, until)
        self._right_at = 0.0
        self._restart()
        if other_weights_s:
            self._counts["other weights"] += 1
            self._right_at = self._up_at + other_weights_s
            self._loop.call_at(self._right_at, self._correct_weights, self._right_at)

    def _correct_weights(self, at: float) -> None:
        """Restarts the server with the right weights, unless it has died since."""
        if self._right_at == at:
            self._restart()

    def _restart(self) -> None:
        """Replaces the server by a new one, without KV and chunks."""
        self.wasted_tokens += self._batch.written(self._now())
        self._prefilled_before += self._batch.prefilled
        self._batch = SimulatedBatch(self._config.engine, self._step, self._speculation)
        self._instance += 1
        self._link_free_at, self._again = 0.0, None
        self._clock.thaw()
        self._reads.restore()
        self._set_timer()
        for reply in [*(call.done for call in self._calls.values()), *self._lost.values()]:
            if not reply.done():
                reply.set_exception(self._unavailable("connection reset"))
