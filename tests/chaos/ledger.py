"""What a rollout did with its chunks: which were lost, and whether tokens were drawn again."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import Chunk, ChunkResult, Request, Sample

Key = tuple[str, int]


class Lost(msgspec.Struct, frozen=True):
    """A lost chunk. Times: seconds of the event loop. `budget`: the most tokens it had drawn."""

    engine_id: str
    sent_at: float
    lost_at: float
    budget: int
    why: str


class Disturbance(msgspec.Struct, kw_only=True):
    """The time in which an engine, or its connections, did not work as they should."""

    engine_id: str
    began: float
    ended: float | None = None  # None: not yet

    def explains(self, lost: Lost) -> bool:
        """Returns whether the chunk was in flight there at that time."""
        over = self.ended is not None and lost.sent_at > self.ended
        return lost.engine_id == self.engine_id and lost.lost_at >= self.began and not over


def unexplained(lost: Iterable[Lost], disturbances: Sequence[Disturbance]) -> list[Lost]:
    """Returns the chunks that were lost although nothing disturbed their engines."""
    return [one for one in lost if not any(each.explains(one) for each in disturbances)]


class Ledger(Observer):
    """Records the chunks of one run.

    `tokens`: returned so far. `unwritten`: the engine that is to store the KV of a request's newest
    chunk, by uid, until it acknowledges. `repeated`: chunks that began before the tokens that their
    request already had.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.in_flight: dict[str, tuple[Chunk, float]] = {}  # by rid, with the time of sending
        self.unwritten: dict[str, str] = {}
        self.lost_chunks: list[Lost] = []
        self.repeated: list[str] = []
        self.finishes: Counter[Key] = Counter()
        self.newest: dict[str, float] = {}  # by engine: when its newest returned chunk was sent
        self._returned: Counter[str] = Counter()  # tokens, by the uid of the request
        self._written: set[str] = set()  # uids: the acknowledgement overtook the reply

    def on(self, engine_id: str) -> list[Chunk]:
        return [chunk for chunk, _ in self.in_flight.values() if chunk.engine_id == engine_id]

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        request = chunk.request
        if chunk.input_len != request.prompt_len + self._returned[request.uid]:
            self.repeated.append(chunk.rid)
        self.unwritten.pop(request.uid, None)
        self._written.discard(request.uid)
        self.in_flight[chunk.rid] = chunk, asyncio.get_running_loop().time()

    @override
    def grown(self, result: ChunkResult) -> None:
        chunk, sent_at = self.in_flight.pop(result.chunk.rid)
        self.newest[chunk.engine_id] = max(sent_at, self.newest.get(chunk.engine_id, 0.0))
        assert result.reply is not None
        self.tokens += len(result.reply.ids)
        self._returned[chunk.request.uid] += len(result.reply.ids)
        if chunk.request.uid not in self._written:
            self.unwritten[chunk.request.uid] = chunk.engine_id

    @override
    def lost(self, result: ChunkResult) -> None:
        chunk, sent_at = self.in_flight.pop(result.chunk.rid)
        now = asyncio.get_running_loop().time()
        self.lost_chunks.append(
            Lost(chunk.engine_id, sent_at, now, chunk.max_new_tokens, str(result.error))
        )

    @override
    def stored(self, request: Request, complete: bool, after_s: float, now: float) -> None:
        if self.unwritten.pop(request.uid, None) is None:
            self._written.add(request.uid)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self.unwritten.pop(request.uid, None)
        self.finishes[sample.group_id, sample.index] += 1
