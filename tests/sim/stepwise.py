"""A step-by-step engine, the reference for the event-driven one.

It is the same model of SGLang (batch.py) in its simplest form: a list of sequences, sums computed
again before every step, no speculation.
"""

import asyncio
from collections.abc import Callable, Mapping

from seer_sgl.engine_types import EngineInfo, EngineLoad, EngineProblem, ServerState
from seer_sgl.sim import batch as rules
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import engine_info, token_source
from seer_sgl.sim.steps import StepTime
from seer_sgl.sim.tokens import ids, logprobs
from seer_sgl.types import Chunk, ChunkReply, Move, WeightSpan


class Sequence:
    """A chunk, and the number of its tokens so far."""

    def __init__(self, chunk: Chunk, tokens: int) -> None:
        request = chunk.request
        self.uid, self.group = request.uid, request.group.uid
        self.prompt_len, self.input_len = request.prompt_len, request.total_len
        self.max_new, self.tokens = chunk.max_new_tokens, tokens
        self.out = self.retractions = 0
        self.pooled = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def length(self) -> int:
        return self.input_len + self.out


class StepwiseEngine:
    """One engine; `run` is its scheduler's main loop."""

    def __init__(
        self,
        engine_id: str,
        config: SimConfig,
        lengths: Mapping[str, int],
        stored: Callable[[str, bool], None],
        _: object,
    ) -> None:
        self.info: EngineInfo = engine_info(engine_id, config)
        self.config, self.lengths, self.stored = config, lengths, stored
        self.step = StepTime(config.engine)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.idle: dict[str, int] = {}  # KV that no sequence uses, oldest first
        self.full, self.ratio = False, rules.INIT_NEW_TOKEN_RATIO
        self.link_free_at = 0.0
        self.forward_steps = 0
        self.arrived = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def settle(self) -> None:
        return

    async def generate(self, chunk: Chunk, _: object = None) -> ChunkReply:
        request, loop = chunk.request, asyncio.get_running_loop()
        left = self.lengths[request.uid] - request.generated
        sequence = Sequence(chunk, min(left, chunk.max_new_tokens))
        pool, here = self.config.pool, self.idle.get(request.uid, 0)
        prefills = chunk.move is Move.PREFILL or not request.generated
        sequence.pooled = pool.enabled and not prefills
        if sequence.pooled and here < request.total_len:
            size = request.total_len * self.config.engine.kv_bytes_per_token
            self.link_free_at = max(loop.time(), self.link_free_at) + size / (pool.gb_s * 1e9)
            await asyncio.sleep(self.link_free_at - loop.time() + pool.latency_ms / 1e3)
        self.waiting.append(sequence)
        self.arrived.set()
        await sequence.done
        if pool.enabled:
            loop.call_later(pool.store_ms / 1e3, self.stored, chunk.rid, True)
        whole = self.lengths[request.uid]
        stops = sequence.tokens == left and whole < request.max_response_len
        source = token_source(request.uid)
        return ChunkReply(
            ids=ids(source, request.generated, sequence.tokens),
            logprobs=logprobs(source, request.generated, sequence.tokens),
            weight_spans=[WeightSpan("simulated", sequence.tokens)],
            finish="stop" if stops else "length",
            retractions=sequence.retractions,
        )

    async def load(self) -> EngineLoad:
        return EngineLoad(used_tokens=self.held(), progress=())

    async def problem(self, _: str | None = None) -> EngineProblem | None:
        return None

    @property
    def server(self) -> ServerState:
        return ServerState()

    async def restore(self, _: EngineInfo) -> str | None:
        return None

    def held(self) -> int:
        """KV tokens in use: own parts, and every prompt once."""
        prompts = {s.group: s.prompt_len for s in self.running}
        return sum(s.length - s.prompt_len for s in self.running) + sum(prompts.values())

    async def run(self) -> None:
        while True:
            done = [s for s in self.running if s.out >= s.tokens]
            for sequence in done:
                self.running.remove(sequence)
                self.idle.pop(sequence.uid, None)
                self.idle[sequence.uid] = sequence.length
                self.full = False
                sequence.done.set_result(None)
            if done:
                await asyncio.sleep(rules.ANSWER_S)
            if self.waiting and not self.full and (seconds := self.prefill()):
                await asyncio.sleep(seconds)
            elif self.running:
                self.retract()
                context = sum(s.length for s in self.running)
                kv_s = context * self.step.attention()
                self.forward_steps += 1
                await asyncio.sleep(self.step.fixed(len(self.running)) + kv_s)
                for sequence in self.running:
                    sequence.out += 1
                self.ratio -= rules.NEW_TOKEN_RATIO_DECAY
                self.ratio = max(rules.MIN_NEW_TOKEN_RATIO, self.ratio)
            else:
                self.arrived.clear()
                await self.arrived.wait()
            self.evict()

    def prefill(self) -> float:
        """Admits the chunks that fit. Returns the seconds of the prefill."""
        clip, cost = self.config.engine.reserve_tokens, 0
        admitted: list[Sequence] = []
        may = sum(min(s.max_new - s.out, clip) for s in self.running)
        left = self.config.engine.kv_tokens - self.held() - may * self.ratio
        groups = {s.group for s in self.running}
        while self.waiting and cost < rules.MAX_PREFILL_TOKENS:
            sequence = self.waiting[0]
            shared = sequence.prompt_len if sequence.group in groups else 0
            ask = sequence.length - shared + min(sequence.max_new, clip)
            others = len(self.running) + len(admitted)
            if others >= self.config.engine.max_running_requests or (ask >= left and others):
                self.full = True
                break
            left -= ask
            there = max(shared, self.idle.get(sequence.uid, 0))
            if not sequence.retractions and sequence.pooled:
                there = sequence.length
            cost += sequence.length - min(there, sequence.length - 1)
            admitted.append(self.waiting.pop(0))
        for sequence in admitted:
            self.idle.pop(sequence.uid, None)
            self.running.append(sequence)
            sequence.out += 1
        self.forward_steps += bool(admitted)
        return self.step.prefill(cost, len(admitted)) if admitted else 0.0

    def retract(self) -> None:
        """Retracts sequences until the next step fits."""
        before = len(self.running)
        while len(self.running) > 1:
            if self.held() + len(self.running) <= self.config.engine.kv_tokens:
                break
            victim = min(self.running, key=lambda s: (s.out, -s.prompt_len))
            self.running.remove(victim)
            victim.retractions += 1
            self.waiting.append(victim)
        if len(self.running) < before:
            written = sum(s.out + rules.RETRACT_DECODE_STEPS for s in self.running)
            allowed = sum(s.max_new for s in self.running)
            self.ratio, self.full = min(1.0, written / (allowed + 1)), False

    def evict(self) -> None:
        """Evicts the oldest idle KV until the running sequences fit."""
        while self.idle and self.held() + sum(self.idle.values()) > self.config.engine.kv_tokens:
            del self.idle[next(iter(self.idle))]
