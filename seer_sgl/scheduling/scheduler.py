"""The scheduler: a state machine with two verbs, `next_assignment` and `complete`.

The asyncio loop drives it against real engines; nothing here knows that time passes or that there
is a network.
"""

from collections.abc import Callable, Iterable, Sequence

from seer_sgl.errors import ChunkRecalled
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    ChunkResult,
    EngineLoad,
    Failure,
    FinishReason,
    Group,
    Move,
    Request,
    RequestState,
)

from .delayed import DelayedRequests
from .engine_index import EngineIndex, EngineSlot
from .fair_share import FairShare
from .placement import CacheAware, Placed, Placement, Wait
from .policy import FirstComeFirstServed, Policy
from .setbacks import Setbacks

# How long a request that should move waits for its KV to be stored; usually 4 to 30 ms.
STORE_PATIENCE_S = 1.0
# How soon a request is sent again to the engine that refused it, while no other one is available.
REFUSED_PAUSE_S = 1.0
OVERTAKEN = 4  # chunks sent later that came back before one: its reply may be lost


class Scheduler:
    """Turns requests into chunks on engines, one at a time, without ever over-promising KV.

    `chunk_tokens`: the token budget of a chunk. `divide` False sends every request whole. What
    another chunk cannot continue is sent whole too, and begins again after an abort.
    `patience_s`: a group is not given up for failures that have lasted less than this.
    """

    def __init__(
        self,
        chunk_tokens: int,
        *,
        divide: bool = True,
        patience_s: float = 60.0,
        make_policy: Callable[[], Policy] = FirstComeFirstServed,
        placement: Placement | None = None,
    ) -> None:
        self._chunk_tokens = chunk_tokens
        self._divide = divide
        self._policy = FairShare(make_policy)
        self._placement = placement or CacheAware()
        self._fleet = EngineIndex()
        self._live: dict[str, Request] = {}  # by uid, until finished or withdrawn
        # By uid, requests whose KV did not reach the pool in time: a hole in it may well stay, so
        # they wait no more until all of it is acknowledged.
        self._no_wait: set[str] = set()
        self._parking = DelayedRequests()
        self._setbacks = Setbacks(self._fleet, patience_s)
        self._refused = (
            DelayedRequests()
        )  # requests that only the engine that refused them could take

    @property
    def engines(self) -> Iterable[EngineSlot]:
        """Every engine, available or not."""
        return self._fleet

    @property
    def wake_at(self) -> float | None:
        """When `next_assignment` may return a chunk although nothing came back; None: never."""
        dues = (self._parking.next_due, self._refused.next_due)
        return min((due for due in dues if due is not None), default=None)

    def add_engine(self, slot: EngineSlot) -> None:
        """An engine joins. Raises ValueError for the name of another one that is there."""
        self._fleet.add(slot)

    def remove_engine(self, engine_id: str) -> None:
        """An engine leaves. Raises ValueError while it has chunks in flight."""
        self._fleet.remove(self._fleet[engine_id])

    def set_available(self, engine_id: str, available: bool) -> None:
        """Stop or resume sending chunks to an engine; what is in flight there goes on."""
        slot = self._fleet[engine_id]
        slot.available = available and not slot.leaving
        self._fleet.changed(slot)

    def leaving(self, engine_id: str) -> bool:
        """Whether an engine is being drained."""
        return self._fleet[engine_id].leaving

    def drain(self, engine_id: str) -> None:
        """Send an engine nothing more, for good."""
        self._fleet[engine_id].leaving = True
        self.set_available(engine_id, False)

    def loaded(self, engine_id: str, load: EngineLoad) -> bool:
        """An engine reported how busy it is. Returns whether it has more room than we knew of."""
        slot = self._fleet[engine_id]
        if slot.ledger is None:
            return False
        more = slot.ledger.reported(load.used_tokens)
        self._fleet.changed(slot)
        return more

    def looked(self, seconds: float) -> None:
        """So much time has passed, as the monitor counts it (patience_s)."""
        self._setbacks.looked(seconds)

    def submit(self, group: Group) -> None:
        """All requests of the group become ready; while it is growing, more may follow."""
        if group.complete:  # there are none
            return
        self._policy.join(group)
        self._add(group.requests)

    def check_new(self, requests: Iterable[Request]) -> None:
        """Raise ValueError for a request whose uid is under way, or is there twice."""
        seen: set[str] = set()
        for request in requests:
            if request.uid in self._live or request.uid in seen:
                raise ValueError(f"request {request.uid!r} is being rolled out already")
            seen.add(request.uid)

    def grow(self, group: Group, requests: Sequence[Request]) -> None:
        """More requests of a growing group become ready. Raises ValueError for another one."""
        if not group.growing or group.withdrawn:
            raise ValueError(f"group {group.group_id!r} does not grow")
        self.check_new(requests)
        group.requests.extend(requests)
        self._add(requests)

    def complete_group(self, group: Group) -> None:
        """No more requests of the group will come."""
        if group.growing and not group.withdrawn:
            group.growing = False
            if group.complete:
                self._policy.leave(group)

    def withdraw(self, group: Group, failure: Failure) -> None:
        """Give the group up: nothing of it is sent again; chunks in flight still complete."""
        if group.withdrawn or group.complete:
            return
        group.withdrawn, group.failure, group.growing = True, failure, False
        for request in group.requests:
            self._drop(request)
        self._policy.leave(group)

    def abort(self, request: Request, now: float) -> bool:
        """The request ends with the tokens it has. Returns whether it has ended already: else it
        ends with its chunk in flight."""
        if request.state is RequestState.PENDING and not request.group.withdrawn:
            self._policy.take_out(request)
            self._drop(request)
            self._finish(request, "abort", None, now)
        request.aborting = request.state is RequestState.RUNNING
        return not request.aborting

    def forget_kv(self) -> None:
        """No engine and no pool has KV any more that a request could go on with: new weights."""
        for request in self._live.values():
            request.stored = False
            if self._parking.leave(request):
                self._policy.push(request)

    def stored(self, rid: str, whole: bool) -> Request | None:
        """The KV of chunk `rid` is in the pool; `whole` False: not all, and it never will be.

        Returns the request whose newest chunk that is, if it still is one.
        """
        request = self._live.get(rid.rpartition(".")[0])
        if request is None:
            return None
        if whole:
            self._no_wait.discard(request.uid)  # late, but without a hole: waiting pays again
        if rid != request.rid:
            return None
        request.stored = whole
        if not whole:
            self._no_wait.add(request.uid)  # there is nothing to wait for
        if self._parking.leave(request):
            self._policy.push(request)
        return request

    def next_assignment(self, now: float) -> Chunk | None:
        """The next chunk to send, already accounted for; None when nothing can start now.

        `now`: seconds on the caller's clock.
        """
        for waited in self._parking.due(now):
            self._no_wait.add(waited.uid)
            self._policy.push(waited)
        for refused in self._refused.due(now):
            self._policy.push(refused)
        while (request := self._policy.peek()) is not None:
            budget = self._budget(request)
            chosen = self._choose(request, request.total_len + budget)
            if chosen is Wait.FOR_ROOM and not request.refusals:
                return None
            self._policy.pop()
            if chosen is Wait.FOR_ROOM:  # what only some engines may take holds nobody else up
                self._refused.park(request, now + REFUSED_PAUSE_S)
                continue
            if chosen is not Wait.FOR_STORE:
                return self._start(request, *chosen, budget, now)
            self._parking.park(request, now + STORE_PATIENCE_S)
        return None

    def complete(self, result: ChunkResult) -> None:
        """A chunk came back: the request grows, and finishes or becomes ready again."""
        chunk = result.chunk
        request, group = chunk.request, chunk.request.group
        slot = self._fleet[chunk.engine_id]
        if slot.ledger is not None and result.reply is not None and result.reply.retractions:
            slot.ledger.feedback.retracted()
        self._fleet.end(slot, request, chunk.kv_tokens)
        self._policy.ended(request)
        request.state, request.returned_at = RequestState.PENDING, result.now
        if result.reply is None:
            request.rid, request.stored = "", False  # what was stored may not be what we have
        else:
            self._grow(result.reply, chunk, result.now)
        recalled = isinstance(result.error, ChunkRecalled)
        failed = not recalled and (result.reply is None or not result.reply.ids)
        if failed:
            self._setbacks.failed(request, slot, result.error)
        elif not recalled:
            self._setbacks.forgiven(request, slot)
        if request.aborting and request.state is not RequestState.FINISHED:
            self._finish(request, "abort", None, result.now)
        if request.state is RequestState.FINISHED or group.withdrawn:
            return
        failure = self._setbacks.verdict(request, slot) if failed else None
        if failure is not None:
            self.withdraw(group, failure)
        elif failed and request.refusals and not self._setbacks.others(request):
            self._refused.park(request, result.now + REFUSED_PAUSE_S)
        else:
            self._policy.push(request)

    def check(self) -> list[str]:
        """Returns what is wrong with the books when nothing is in flight and nobody waits: chunks,
        promises and requests that are left over. Empty when all is well."""
        breaches = []
        for slot in self._fleet:
            if slot.inflight:
                breaches.append(f"engine {slot.engine_id} has {slot.inflight} chunks in flight")
            if slot.ledger is not None and slot.ledger.used:
                breaches.append(f"{slot.ledger.used} KV tokens of {slot.engine_id} are promised")
        if self._live:
            breaches.append(f"{len(self._live)} requests are left, such as {min(self._live)}")
        if self._no_wait or (self._parking.next_due, self._refused.next_due) != (None, None):
            breaches.append("requests are left waiting")
        if self._policy.callers:
            breaches.append(f"{self._policy.callers} callers are left")
        return breaches

    def overtaken(self, oldest: Chunk) -> bool:
        """Whether several chunks came back that were sent after the oldest one that its engine has
        in flight."""
        slot = self._fleet[oldest.engine_id]
        later = slot.started - oldest.number
        return later - (slot.inflight - 1) >= OVERTAKEN

    def _choose(self, request: Request, total_len: int) -> Placed | Wait:
        """The engine of the request's next chunk: another one than those that have refused it."""
        others = self._setbacks.others(request) if request.refusals else []
        if not others:
            may_wait = request.uid not in self._no_wait
            return self._placement.choose(request, total_len, self._fleet, may_wait)
        able = (slot for slot in others if slot.admits(request, total_len))
        slot = min(able, key=lambda slot: slot.inflight, default=None)
        if slot is None:
            return Wait.FOR_ROOM
        stays = self._fleet.home(request) in (None, slot)
        return Placed(slot, Move.STAY if stays else Move.PREFILL)

    def _budget(self, request: Request) -> int:
        """Response tokens of the request's next chunk."""
        if not self._divide or not request.group.continues:
            return request.remaining
        return min(request.remaining, self._chunk_tokens)

    def _start(
        self, request: Request, slot: EngineSlot, move: Move, budget: int, now: float
    ) -> Chunk:
        total_len = request.total_len + budget
        self._fleet.start(slot, request, total_len)
        self._policy.started(request)
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
            number=slot.started,
            whole=not request.group.continues,
        )

    def _grow(self, reply: ChunkReply, chunk: Chunk, now: float) -> None:
        request = chunk.request
        request.append(reply)
        request.engines.append(chunk.engine_id)
        if reply.finish == "stop":
            self._finish(request, "stop", reply.matched, now)
        elif request.remaining <= 0:
            # Fewer tokens than asked for is a limit of that one call (SGLang's own cap): go on.
            self._finish(request, "length", None, now)

    def _finish(
        self, request: Request, reason: FinishReason, matched: int | str | None, now: float
    ) -> None:
        request.finish(reason, matched, now)
        self._drop(request)
        if request.group.withdrawn:
            return
        if reason != "abort":  # how long it would have got is not known
            self._policy.finished(request)
        if request.group.complete:
            self._policy.leave(request.group)

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._live[request.uid] = request
            self._policy.push(request)

    def _drop(self, request: Request) -> None:
        self._live.pop(request.uid, None)
        self._parking.leave(request)
        self._refused.leave(request)
        self._no_wait.discard(request.uid)
