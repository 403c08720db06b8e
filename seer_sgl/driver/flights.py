"""The chunks in flight: one task per chunk, and exactly one result for each."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import msgspec

from seer_sgl.errors import ChunkAborted, ChunkRecalled, EngineError, EngineUnavailable
from seer_sgl.types import (
    Chunk,
    ChunkFigures,
    ChunkReply,
    ChunkResult,
    Request,
    logprob_array,
    token_array,
)

from .engine import Engine
from .run import Run
from .stop_strings import Amend
from .token_stream import TokenStream

# The reply to a chunk whose answer went to the client unread.
FORWARDED = ChunkReply(
    ids=token_array(), logprobs=logprob_array(), weight_spans=[], finish="stop", passthrough=True
)
Clock = Callable[[], float]
ChunkTask = asyncio.Task[ChunkReply | EngineError]


class Flight:
    """A chunk in flight. `taken_back`: why the driver no longer expects a reply."""

    def __init__(self, run: Run, chunk: Chunk, task: ChunkTask, stream: TokenStream | None) -> None:
        self.run = run
        self.chunk = chunk
        self.task = task
        self.stream = stream
        self.recalled = False  # the engine was requested to end it early
        self.aborted = False  # its caller aborted the request, which ends with this chunk
        self.taken_back: EngineError | None = None
        self.outcome: ChunkReply | EngineError | None = None  # None: it has not ended
        self.ended_at = 0.0  # on the loop's clock

    def take_back(self, error: EngineError) -> None:
        """Cancels the chunk's task; `error` becomes its result."""
        if self.taken_back is None:
            self.taken_back = error
            self.task.cancel()

    @property
    def result(self) -> ChunkResult:
        chunk, now, outcome = self.chunk, self.ended_at, self.outcome
        if isinstance(outcome, ChunkReply):
            return result_of(chunk, outcome, now, recalled=self.recalled, aborted=self.aborted)
        kept = None if self.stream is None else self.stream.kept
        return ChunkResult(chunk=chunk, now=now, reply=kept, error=outcome, aborted=self.aborted)


def result_of(
    chunk: Chunk, reply: ChunkReply, now: float, *, recalled: bool = False, aborted: bool = False
) -> ChunkResult:
    """Returns the result of a chunk with a reply. `recalled`: the driver ended it early.

    A reply that leaves an undivided request unfinished becomes an error here, before its tokens
    count: its sampling state (grammar, penalties) ended with the call. If the caller aborted the
    request, the reply stays.
    """
    subject = "a request that cannot be continued"
    kind: type[EngineError]
    if recalled and reply.finish == "abort" and not reply.ids:
        kind, subject = ChunkRecalled, "a chunk that was taken back"
    elif not chunk.undivided or chunk.ended_by(reply) or aborted:
        return ChunkResult(chunk=chunk, now=now, reply=reply, aborted=aborted)
    elif reply.finish != "abort":
        kind = EngineUnavailable
    else:
        kind = ChunkRecalled if recalled else ChunkAborted
    tokens = f"{len(reply.ids)} of {chunk.max_new_tokens} tokens"
    error = kind(
        f"engine {chunk.engine_id}: {subject} ended ({reply.finish}) after {tokens}",
        engine_id=chunk.engine_id,
    )
    return ChunkResult(chunk=chunk, now=now, error=error, aborted=aborted, dropped=len(reply.ids))


class Flights:
    """The chunks in flight, in the order of sending.

    `engines`: by id, as they come and go. `report` receives each flight once, when it has ended; it
    counts as in flight until `land`. `amend` may shorten a reply before it is reported. `recall_s`:
    how long an engine has to return the tokens of a recalled chunk; then the chunk is dropped.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        clock: Clock,
        amend: Amend,
        report: Callable[[Flight], None],
        recall_s: float,
    ) -> None:
        self._engines = engines
        self._clock = clock
        self._amend = amend
        self._report = report
        self._recall_s = recall_s
        self._by_request: dict[Request, Flight] = {}
        self._by_engine: dict[str, dict[Request, Flight]] = {}
        self._landed = asyncio.Event()  # a chunk has ended
        self._recalls: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._by_request.values())

    def of(self, request: Request) -> Flight | None:
        """Returns the flight of a request's chunk; None if no chunk of it is in flight."""
        return self._by_request.get(request)

    def on(self, engine_id: str) -> Iterator[Flight]:
        """Yields the flights on an engine, in the order of sending."""
        return iter(self._by_engine.get(engine_id, {}).values())

    def send(self, tasks: asyncio.TaskGroup, run: Run, chunk: Chunk) -> None:
        """Starts the task that has the chunk generated by its engine."""
        stream = TokenStream(chunk, run, self._amend) if chunk.request.streaming else None
        task = tasks.create_task(self._serve(chunk, stream))
        flight = self._by_request[chunk.request] = Flight(run, chunk, task, stream)
        self._by_engine.setdefault(chunk.engine_id, {})[chunk.request] = flight
        task.add_done_callback(functools.partial(self._served, flight))

    def land(self, flight: Flight) -> ChunkResult:
        """Removes a flight that was reported, and returns its result, with figures."""
        self._landed.set()
        del self._by_request[flight.chunk.request]
        del self._by_engine[flight.chunk.engine_id][flight.chunk.request]
        result, engine = flight.result, self._engines[flight.chunk.engine_id].info
        if result.reply is None:
            return result
        figures = ChunkFigures.of(result.chunk, result.reply, engine.kv_bytes_per_token)
        return msgspec.structs.replace(result, figures=figures)

    def abandon(self) -> None:
        """Removes all flights, because the driver has ended: no result follows."""
        self._by_request.clear()
        self._by_engine.clear()
        self._landed.set()

    def recall(self, flight: Flight, why: str, *, restart: bool = False) -> None:
        """Requests the engine to end a chunk early with the tokens it has so far.

        A chunk that could not keep its tokens runs on, unless its request is being aborted.
        restart: such a chunk also ends, and begins again later. A passthrough chunk never restarts:
        its client may have a part of the answer.
        """
        request = flight.chunk.request
        keeps = not flight.chunk.undivided or flight.aborted
        if request.passthrough is not None:
            if flight.aborted:
                flight.take_back(ChunkRecalled(why, engine_id=flight.chunk.engine_id))
            return
        if flight.recalled or flight.task.done() or not (keeps or restart):
            return
        flight.recalled = True
        task = asyncio.create_task(self._end_early(flight, why))
        self._recalls.add(task)
        task.add_done_callback(self._recalls.discard)

    async def until_landed(
        self, wanted: Callable[[Chunk], bool], why: str, *, restart: bool = False
    ) -> None:
        """Recalls the chunks that are `wanted`, and waits until none of them is in flight."""
        while flights := [flight for flight in self if wanted(flight.chunk)]:
            for flight in flights:
                self.recall(flight, why, restart=restart)
            # Most others land before the last one: to look at all at each landing takes too long.
            while self.of(flights[-1].chunk.request) is flights[-1]:
                self._landed.clear()
                await self._landed.wait()

    async def _serve(self, chunk: Chunk, stream: TokenStream | None) -> ChunkReply | EngineError:
        on_tokens = None if stream is None else stream.received
        try:
            if chunk.request.passthrough is not None:
                await chunk.request.passthrough(chunk.engine_id)
                return FORWARDED
            reply = await self._engines[chunk.engine_id].generate(chunk, on_tokens)
        except EngineError as error:
            return error
        return self._amend(chunk.request, reply)

    def _served(self, flight: Flight, task: ChunkTask) -> None:
        """Reports a finished task exactly once, even if the task never started."""
        if task.cancelled():
            if flight.taken_back is None:  # the loop itself is being cancelled
                return
            flight.outcome = flight.taken_back
        elif task.exception() is not None:  # a defect of the driver; it ends the loop
            return
        else:
            flight.outcome = task.result()
        flight.ended_at = self._clock()
        self._report(flight)

    async def _end_early(self, flight: Flight, why: str) -> None:
        engine_id = flight.chunk.engine_id
        with contextlib.suppress(EngineError):
            await self._engines[engine_id].abort(flight.chunk)
        await asyncio.wait({flight.task}, timeout=self._recall_s)
        if not flight.task.done():
            flight.take_back(ChunkRecalled(why, engine_id=engine_id))
