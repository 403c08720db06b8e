"""The scheduler: a state machine with two verbs, `next_assignment` and `complete`.

The asyncio loop drives it against real engines; nothing here knows that time passes or that there
is a network.
"""

from collections.abc import Iterable

from seer_sgl.errors import RequestRejected
from seer_sgl.types import Chunk, ChunkReply, ChunkResult, Group, Move, Request, RequestState

from .placement import CacheAware, EngineSlot, Placement, Verdict
from .policy import FirstComeFirstServed, Policy

# How long a request that should move waits for its KV to be stored; usually 4 to 30 ms.
STORE_PATIENCE_S = 1.0
# Chunks of one request that bring nothing so many times in a row, for as long as an outage may
# last, are not bad luck.
MAX_CONSECUTIVE_FAILURES = 5


class Scheduler:
    """Turns requests into chunks on engines, one at a time, without ever over-promising KV.

    `chunk_tokens`: the token budget of a chunk. `divide` False sends every request whole.
    `patience_s`: a group is not given up for failures that have lasted less than this.
    """

    def __init__(
        self,
        chunk_tokens: int,
        *,
        divide: bool = True,
        patience_s: float = 60.0,
        policy: Policy | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._chunk_tokens = chunk_tokens
        self._divide = divide
        self._patience_s = patience_s
        self._policy = policy or FirstComeFirstServed()
        self._placement = placement or CacheAware()
        self._engines: dict[str, EngineSlot] = {}
        self._live: dict[str, Request] = {}  # by uid, until finished or withdrawn
        # By uid, requests whose KV did not reach the pool in time: a hole in it may well stay, so
        # they wait no more until all of it is acknowledged.
        self._hurried: set[str] = set()
        self._parked: dict[str, tuple[Request, float]] = {}  # by uid: waits until then at most

    @property
    def engines(self) -> Iterable[EngineSlot]:
        """Every engine, available or not."""
        return self._engines.values()

    @property
    def wake_at(self) -> float | None:
        """When `next_assignment` may have more to say although nothing came back; None: never."""
        return min((until for _, until in self._parked.values()), default=None)

    def add_engine(self, slot: EngineSlot) -> None:
        """An engine joins."""
        self._engines[slot.engine_id] = slot

    def set_available(self, engine_id: str, available: bool) -> None:
        """Stop or resume sending chunks to an engine; what is in flight there goes on."""
        self._engines[engine_id].available = available

    def submit(self, group: Group) -> None:
        """All requests of the group become ready."""
        for request in group.requests:
            self._live[request.uid] = request
            self._policy.push(request)

    def withdraw(self, group: Group) -> None:
        """Give the group up: nothing of it is sent again; chunks in flight still complete."""
        group.withdrawn = True
        for request in group.requests:
            self._live.pop(request.uid, None)
            self._parked.pop(request.uid, None)
            self._hurried.discard(request.uid)

    def stored(self, rid: str, whole: bool) -> Request | None:
        """The KV of chunk `rid` is in the pool; `whole` False: not all, and it never will be.

        Returns the request whose newest chunk that is, if it still is one.
        """
        request = self._live.get(rid.rpartition(".")[0])
        if request is None:
            return None
        if whole:
            self._hurried.discard(request.uid)  # late, but without a hole: waiting pays again
        if rid != request.rid:
            return None
        request.stored = whole
        if not whole:
            self._hurried.add(request.uid)  # there is nothing to wait for
        if self._parked.pop(request.uid, None) is not None:
            self._policy.push(request)
        return request

    def next_assignment(self, now: float) -> Chunk | None:
        """The next chunk to send, already accounted for; None when nothing can start now.

        `now`: seconds on the caller's clock.
        """
        self._unpark(now)
        while (request := self._next_ready()) is not None:
            budget = request.remaining
            if self._divide:
                budget = min(budget, self._chunk_tokens)
            total_len = request.total_len + budget
            slots = list(self._engines.values())
            chosen = self._placement.choose(
                request, total_len, slots, request.uid not in self._hurried
            )
            if chosen is Verdict.FULL:
                return None
            self._policy.pop()
            if chosen is not Verdict.UNSTORED:
                return self._start(request, *chosen, budget, now)
            self._parked[request.uid] = (request, now + STORE_PATIENCE_S)
        return None

    def complete(self, result: ChunkResult) -> None:
        """A chunk came back: the request grows, and finishes or becomes ready again."""
        chunk = result.chunk
        request, group = chunk.request, chunk.request.group
        slot = self._engines[chunk.engine_id]
        slot.inflight -= 1
        slot.completed += 1
        if slot.ledger is not None:
            slot.ledger.release(group.uid, request.prompt_len, chunk.kv_tokens)
        request.state, request.returned_at = RequestState.PENDING, result.now
        if result.reply is None:
            request.rid, request.stored = "", False  # what was stored may not be what we have
        else:
            self._grow(result.reply, chunk, result.now)
        if result.reply is not None and result.reply.ids:
            request.failures, request.failing_since = 0, None
        else:
            request.failures += 1
            request.failing_since = request.failing_since or result.now
        if request.state is RequestState.FINISHED:
            self._live.pop(request.uid, None)
            self._hurried.discard(request.uid)
        if request.state is RequestState.FINISHED or group.withdrawn:
            return
        if isinstance(result.error, RequestRejected):
            group.error = str(result.error)
        elif self._hopeless(request, result.now):
            last = result.error or "the engine aborted it without a token"
            group.error = f"{request.failures} chunks in a row failed, the last one so: {last}"
        if group.error is None:
            self._policy.push(request)
        else:
            self.withdraw(group)

    def _hopeless(self, request: Request, now: float) -> bool:
        since = request.failing_since
        return (
            since is not None
            and request.failures >= MAX_CONSECUTIVE_FAILURES
            and now - since >= self._patience_s
        )

    def _next_ready(self) -> Request | None:
        while (request := self._policy.peek()) is not None:
            if not request.group.withdrawn:
                return request
            self._policy.pop()
        return None

    def _unpark(self, now: float) -> None:
        for uid, (request, until) in list(self._parked.items()):
            if until <= now:
                del self._parked[uid]
                self._hurried.add(uid)
                self._policy.push(request)

    def _start(
        self, request: Request, slot: EngineSlot, move: Move, budget: int, now: float
    ) -> Chunk:
        total_len = request.total_len + budget
        slot.inflight += 1
        if slot.ledger is not None:
            slot.ledger.reserve(request.group.uid, request.prompt_len, total_len)
        request.state = RequestState.RUNNING
        request.attempts += 1
        # The terminator keeps SGLang's prefix match of /abort_request from hitting c10 by c1.
        request.rid = f"{request.uid}.c{request.attempts}/"
        request.stored, request.returned_at = False, None
        if request.started_at is None:
            request.started_at = now
        return Chunk(
            request=request,
            engine_id=slot.engine_id,
            rid=request.rid,
            max_new_tokens=budget,
            kv_tokens=total_len,
            move=move,
            migrated=bool(request.engines) and request.engines[-1] != slot.engine_id,
        )

    def _grow(self, reply: ChunkReply, chunk: Chunk, now: float) -> None:
        request = chunk.request
        request.append(reply)
        request.engines.append(chunk.engine_id)
        if reply.finish == "stop":
            request.finish("stop", reply.matched, now)
        elif reply.finish == "length" and request.remaining <= 0:
            # Fewer tokens than asked for is a limit of that one call (SGLang's own cap): go on.
            request.finish("length", None, now)
