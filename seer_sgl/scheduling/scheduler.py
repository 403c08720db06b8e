"""The scheduler: a state machine with two verbs, `next_assignment` and `complete`.

The asyncio loop of the driver runs it against real engines. The scheduler itself has no clock and
no network. What always holds (tests/scheduling/test_properties.py):

- A request has at most one chunk in flight, and ends exactly once: finished, or given up.
- Tokens never leave a request. Chunks without any end it only after failures that lasted for
  `patience_s`, refusals by two engines, or the deaths of `max_engine_kills` engines.
- The KV promised on an engine, to all chunks there up to the end of their budgets, fits its cache.
- An engine that is unavailable or leaves gets no chunk. A refused request goes elsewhere first.
- No request starves: with q others ready, it is picked within 64 (q + 1) picks of its caller.
- With nothing submitted, nothing is left: ledger, waits, suspects and attempts are empty.
"""

from collections.abc import Callable, Iterable, Sequence

from seer_sgl.admission.sampling import divisible
from seer_sgl.engine_types import EngineLoad
from seer_sgl.errors import BadReply, ChunkRecalled, EngineDied, EngineStalled
from seer_sgl.timing import DEFAULT
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    ChunkResult,
    Failure,
    FinishReason,
    Group,
    Move,
    Request,
    RequestState,
)

from .attempts import Attempts
from .engine_index import EngineIndex, EngineSlot
from .fair_share import FairShare
from .placement import CacheAware, Placed, Placement, Wait
from .policy import FirstComeFirstServed, Policy
from .setbacks import Setbacks
from .suspects import Suspects
from .timed_waits import TimedWaits

# The pause before a request is sent again to the engine that refused it, if no other is available.
REFUSED_PAUSE_S = 1.0
OVERTAKEN = 4  # if so many later chunks returned before a chunk, its reply may be lost


class Scheduler:
    """Turns requests into chunks on engines, one at a time, without over-promising KV.

    `chunk_tokens`: the token budget of a chunk. `divide` False sends every request undivided. A
    request that another chunk cannot continue is also undivided, and restarts after an abort.
    `patience_s`: a request is given up only after failures that lasted at least this long.
    `max_engine_kills`: it is given up once so many engines died while they ran it (suspects.py).
    `max_inflight`: the most chunks in flight on all engines together. `store_patience_s`: the
    longest wait of a request that should move for its KV to be stored.
    """

    def __init__(
        self,
        chunk_tokens: int,
        *,
        divide: bool = True,
        patience_s: float = 60.0,
        max_engine_kills: int = 2,
        make_policy: Callable[[], Policy] = FirstComeFirstServed,
        placement: Placement | None = None,
        max_inflight: int | None = None,
        store_patience_s: float = DEFAULT.store_patience_s,
    ) -> None:
        self._inflight = 0
        self._max_inflight = max_inflight
        self._store_patience_s = store_patience_s
        self._chunk_tokens = chunk_tokens
        self._divide = divide
        self._policy = FairShare(make_policy)
        self._placement = placement or CacheAware()
        self._fleet = EngineIndex()
        self._live: dict[str, Attempts] = {}  # by uid, until finished or withdrawn
        self._unstored = TimedWaits()  # requests that should move once their KV is stored
        self._setbacks = Setbacks(self._fleet, patience_s)
        self._suspects = Suspects(max_engine_kills)
        self._fallen: dict[str, int] = {}  # chunks lost with an engine, by its id
        self._awaited: EngineSlot | None = None  # reserved for a trial, and not empty yet
        # Refused requests that no other engine can take now.
        self._refused = TimedWaits()

    @property
    def engines(self) -> Iterable[EngineSlot]:
        """Every engine, available or not."""
        return self._fleet

    @property
    def wake_at(self) -> float | None:
        """The time at which `next_assignment` may return a chunk without a returned chunk; None:
        never."""
        dues = (self._unstored.next_due, self._refused.next_due)
        return min((due for due in dues if due is not None), default=None)

    def add_engine(self, slot: EngineSlot) -> None:
        """Adds an engine. Raises ValueError if an engine with the same id has not left."""
        self._fleet.add(slot)

    def remove_engine(self, engine_id: str) -> None:
        """Removes an engine. Raises ValueError while it has chunks in flight."""
        self._fleet.remove(self._fleet[engine_id])

    def set_available(self, engine_id: str, available: bool) -> None:
        """Stops or resumes sending chunks to an engine; its chunks in flight continue."""
        slot = self._fleet[engine_id]
        slot.available = available and not slot.leaving
        self._fleet.changed(slot)

    def set_reads(self, engine_id: str, reads: bool) -> None:
        """Stops or resumes the reading of KV from the pool for the next chunks of an engine."""
        self._fleet[engine_id].reads = reads

    def available(self, engine_id: str) -> bool:
        """Returns whether chunks are sent to an engine."""
        return self._fleet[engine_id].available

    def drain(self, engine_id: str) -> None:
        """Stops sending chunks to an engine permanently."""
        self._fleet[engine_id].leaving = True
        self.set_available(engine_id, False)

    def loaded(self, engine_id: str, load: EngineLoad) -> bool:
        """Applies an engine's load report. Returns whether it has more room than before."""
        slot = self._fleet[engine_id]
        if slot.ledger is None:
            return False
        more = slot.ledger.reported(load.used_tokens)
        self._fleet.changed(slot)
        return more

    def elapsed(self, seconds: float) -> None:
        """Adds elapsed time, as the monitor measures it; `patience_s` is compared with it."""
        self._setbacks.elapsed(seconds)

    def submit(self, group: Group) -> None:
        """Makes the group's unfinished requests ready; while it is growing, more may follow."""
        if group.complete or group.withdrawn:  # nothing is left to do
            return
        self._policy.join(group)
        finished = [r for r in group.requests if r.state is RequestState.FINISHED]
        self._add(r for r in group.requests if r.state is not RequestState.FINISHED)
        for request in finished:  # by an earlier process
            self._report_length(request)

    def check_new(self, requests: Iterable[Request]) -> None:
        """Raises ValueError if a request's uid is already rolled out or appears twice."""
        seen: set[str] = set()
        for request in requests:
            if request.uid in self._live or request.uid in seen:
                raise ValueError(f"request {request.uid!r} is being rolled out already")
            seen.add(request.uid)

    def grow(self, group: Group, requests: Sequence[Request]) -> None:
        """Adds requests to a growing group and makes them ready. Raises ValueError if the group
        does not grow."""
        if not group.growing or group.withdrawn:
            raise ValueError(f"group {group.group_id!r} does not grow")
        self.check_new(requests)
        group.requests.extend(requests)
        self._add(requests)

    def complete_group(self, group: Group) -> None:
        """Marks a growing group as closed: it gets no more requests."""
        if group.growing and not group.withdrawn:
            group.growing = False
            for request in group.requests:
                if request.retain_kv and request.state is RequestState.FINISHED:
                    self._drop(request)
            if group.complete:
                self._policy.leave(group)

    def prefer(self, group: Group) -> None:
        """Sends the group's requests before those of its caller's other groups from now on."""
        if group.withdrawn or group.complete:
            return
        ready = [request for request in group.requests if self._ready(request)]
        for request in ready:
            self._policy.take_out(request)
        self._policy.prefer(group)
        for request in ready:
            self._policy.push(request)

    def withdraw(self, group: Group, failure: Failure) -> None:
        """Gives up the group: none of its requests is sent again; chunks in flight complete."""
        if group.withdrawn or group.complete:
            return
        group.withdrawn, group.failure, group.growing = True, failure, False
        for request in group.requests:
            self._drop(request)
        self._policy.leave(group)

    def abort(self, request: Request, now: float) -> bool:
        """Ends the request with the tokens it has. Returns whether it has ended; if not, it ends
        with its chunk in flight, whose result must be `aborted`."""
        if request.state is RequestState.PENDING and not request.group.withdrawn:
            self._policy.take_out(request)
            self._drop(request)
            self._finish(request, "abort", None, now)
        return request.state is not RequestState.RUNNING

    def forget_kv(self) -> None:
        """Discards all knowledge of stored KV: new weights make the KV of all requests useless."""
        for attempts in self._live.values():
            attempts.stored = False
            if attempts.returned_at is not None:
                attempts.rid = ""  # an acknowledgement that is still to come is of useless KV
            if self._unstored.leave(attempts.request):
                self._make_ready(attempts)

    def stored(self, rid: str, complete: bool) -> Request | None:
        """Records that the KV of chunk `rid` is in the pool, or that a part is permanently missing.

        Returns the request whose newest chunk this is; None if there is no such request.
        """
        attempts = self._live.get(rid.rpartition(".")[0])
        if attempts is None:
            return None
        if complete:
            attempts.no_wait = False  # late but complete: waiting pays again
        if rid != attempts.rid:
            return None
        attempts.stored = complete
        if not complete:
            attempts.no_wait = True  # the KV will never be complete
        if self._unstored.leave(attempts.request):
            self._make_ready(attempts)
        return attempts.request

    def returned_at(self, request: Request) -> float | None:
        """Returns when the newest chunk of a live request came back; None while it is in flight."""
        return self._live[request.uid].returned_at

    def next_assignment(self, now: float) -> Chunk | None:
        """Returns the next chunk to send, already accounted for; None if none can start now.

        `now`: seconds on the caller's clock.
        """
        for waited in self._unstored.due(now):
            self._live[waited.uid].no_wait = True
            self._make_ready(self._live[waited.uid])
        for refused in self._refused.due(now):
            self._make_ready(self._live[refused.uid])
        for tested in self._suspects.released():
            self._policy.push(tested)
        if self._max_inflight is not None and self._inflight >= self._max_inflight:
            return None
        suspect = self._next_suspect(now)
        if suspect is not None:
            return suspect if isinstance(suspect, Chunk) else None
        while (request := self._policy.peek()) is not None:
            attempts, budget = self._live[request.uid], self._budget(request)
            chosen = self._choose(attempts, request.total_with(budget))
            if chosen is Wait.FOR_ROOM and not attempts.refusals:
                return None
            self._policy.pop()
            if chosen is Wait.FOR_ROOM:  # a refused request must not block the requests after it
                self._refused.add(request, now + REFUSED_PAUSE_S)
                continue
            if chosen is not Wait.FOR_STORE:
                return self._start(attempts, *chosen, budget, now)
            self._unstored.add(request, now + self._store_patience_s)
        return None

    def complete(self, result: ChunkResult) -> None:
        """Applies a returned chunk: the request grows, and finishes or becomes ready again."""
        chunk = result.chunk
        request, group = chunk.request, chunk.request.group
        attempts = self._attempts(request) or Attempts(request)  # its group was withdrawn
        slot = self._fleet[chunk.engine_id]
        if slot.ledger is not None and result.reply is not None and result.reply.retractions:
            slot.ledger.feedback.retracted()
        self._inflight -= 1
        self._fleet.end(slot, request, chunk.kv_tokens)
        self._policy.ended(request)
        self._freed(slot)
        died = isinstance(result.error, EngineDied | EngineStalled)
        self._fallen[slot.engine_id] = self._fallen.get(slot.engine_id, 0) + died
        self._suspects.ended(request, slot.engine_id)
        if slot.reserved_for is request:
            self._reserve(slot, None)
        request.state, attempts.returned_at = RequestState.PENDING, result.now
        if result.reply is None:
            self._lost(attempts, result.error)
        else:
            self._grow(result.reply, chunk, result.now)
        recalled = isinstance(result.error, ChunkRecalled)
        failed = not recalled and (result.reply is None or result.reply.tokenless)
        if failed:
            self._setbacks.failed(attempts, slot, result.error)
        elif not recalled:
            self._setbacks.reset(attempts, slot)
            if not died:  # else these tokens had arrived before
                self._suspects.proceeded(attempts)
        if result.aborted and request.state is not RequestState.FINISHED:
            self._finish(request, "abort", None, result.now)
        if request.state is RequestState.FINISHED or group.withdrawn:
            return
        failure = self._verdict(attempts, result, slot, died=died, failed=failed)
        if failure is not None:
            self._give_up(request, failure, result.now)
        elif failed and attempts.refusals and not self._setbacks.others(attempts):
            self._refused.add(request, result.now + REFUSED_PAUSE_S)
        else:
            self._make_ready(attempts)

    def _verdict(
        self,
        attempts: Attempts,
        result: ChunkResult,
        slot: EngineSlot,
        *,
        died: bool,
        failed: bool,
    ) -> Failure | None:
        """Returns the reason to give up the chunk's request; None if it is sent again."""
        failure = None
        if died:
            failure = self._suspects.killed(
                attempts,
                result.chunk,
                str(result.error),
                beside_others=slot.inflight > 0 or self._fallen[slot.engine_id] > 1,
                stalled=isinstance(result.error, EngineStalled),
            )
        if failure is None and failed:
            failure = self._setbacks.verdict(attempts, slot)
        return failure

    def check(self) -> list[str]:
        """Returns the broken invariants of an idle scheduler: chunks, reserved KV and requests that
        are left over. Empty if all invariants hold."""
        breaches = []
        for slot in self._fleet:
            if slot.inflight:
                breaches.append(f"engine {slot.engine_id} has {slot.inflight} chunks in flight")
            if slot.reserved_for is not None:
                breaches.append(f"engine {slot.engine_id} is reserved")
            if slot.ledger is not None and slot.ledger.used:
                breaches.append(f"{slot.ledger.used} KV tokens of {slot.engine_id} are promised")
        if self._live:
            breaches.append(f"{len(self._live)} requests are left, such as {min(self._live)}")
        if (self._unstored.next_due, self._refused.next_due) != (None, None):
            breaches.append("requests are left waiting")
        breaches += self._suspects.breaches()
        if self._policy.callers:
            breaches.append(f"{self._policy.callers} callers are left")
        return breaches

    def overtaken(self, oldest: Chunk) -> bool:
        """Returns whether OVERTAKEN chunks returned that were sent after `oldest`, the oldest chunk
        in flight on its engine."""
        slot = self._fleet[oldest.engine_id]
        later = slot.started - oldest.number
        return later - (slot.inflight - 1) >= OVERTAKEN

    def _make_ready(self, attempts: Attempts) -> None:
        """Makes a pending request wait for its next chunk."""
        if not self._suspects.take(attempts):
            self._policy.push(attempts.request)

    def _freed(self, slot: EngineSlot) -> None:
        """Gives the refused requests that an engine may take a turn: it may have room now. After
        their pause alone they would only ever find it full, as long as others are ready."""
        for request in list(self._refused):
            attempts = self._live[request.uid]
            if slot.available and not attempts.refused_by(slot.engine_id):
                self._refused.leave(request)
                self._make_ready(attempts)

    def _next_suspect(self, now: float) -> Chunk | Wait | None:
        """Returns the next chunk of a suspect, on an engine without another one.

        Wait.FOR_ROOM: no engine has room for it, and no suspect runs, so that it goes next. None:
        other requests go first.
        """
        attempts = self._suspects.first
        if attempts is None:
            return None
        request = attempts.request
        budget = self._suspects.budget(attempts, self._budget(request))
        total_len = request.total_with(budget)
        others = self._setbacks.others(attempts) or [slot for slot in self._fleet if slot.available]
        able = (
            slot
            for slot in others
            if self._suspects.may_join(slot) and slot.admits(request, total_len)
        )
        slot = min(able, key=lambda e: (e.inflight, e is not self._awaited), default=None)
        trial = self._suspects.is_trial(attempts)
        self._await_empty(slot if trial else None, request)
        if slot is None:
            return None if self._suspects.running or attempts.refusals else Wait.FOR_ROOM
        if trial and slot.inflight:
            return None
        self._suspects.leave(request)
        self._awaited = None
        if self._suspects.keeps_others_away(attempts):
            self._reserve(slot, request)
        return self._start(
            attempts, slot, self._fleet.move_without_pool(request, slot), budget, now
        )

    def _await_empty(self, slot: EngineSlot | None, request: Request | None) -> None:
        """Keeps other requests away from an engine until it is empty; None: from no engine."""
        if self._awaited is not None and self._awaited is not slot:
            self._reserve(self._awaited, None)
        if slot is not None:
            self._reserve(slot, request)
        self._awaited = slot

    def _reserve(self, slot: EngineSlot, request: Request | None) -> None:
        slot.reserved_for = request
        self._fleet.changed(slot)

    def _give_up(self, request: Request, failure: Failure, now: float) -> None:
        """Ends a request that failed for good, with the tokens it has; perhaps with its group."""
        request.failure = failure
        if request.group.on_failure == "group":
            self.withdraw(request.group, failure)
        self._finish(request, "abort", None, now)

    def _choose(self, attempts: Attempts, total_len: int) -> Placed | Wait:
        """Returns the engine of the request's next chunk: one that has not refused it, if there is
        one."""
        others = self._setbacks.others(attempts) if attempts.refusals else []
        if not others:
            return self._placement.choose(attempts, total_len, self._fleet)
        able = (slot for slot in others if slot.admits(attempts.request, total_len))
        slot = min(able, key=lambda slot: slot.inflight, default=None)
        if slot is None:
            return Wait.FOR_ROOM
        return Placed(slot, self._fleet.move_without_pool(attempts.request, slot))

    def _budget(self, request: Request) -> int:
        """Returns the response tokens of the request's next chunk."""
        remaining = max(1, request.remaining)  # a wrong count of image tokens leaves less
        if not self._divide or not divisible(request):
            return remaining
        return min(remaining, self._chunk_tokens)

    def _start(
        self, attempts: Attempts, slot: EngineSlot, move: Move, budget: int, now: float
    ) -> Chunk:
        request = attempts.request
        total_len = request.total_with(budget)
        self._fallen.pop(slot.engine_id, None)
        self._inflight += 1
        self._fleet.start(slot, request, total_len)
        self._policy.started(request)
        self._suspects.started(attempts, slot.engine_id)
        request.state = RequestState.RUNNING
        attempts.sent += 1
        # SGLang's /abort_request matches by prefix: the terminator keeps c1 from aborting c10.
        attempts.rid = f"{request.uid}.c{attempts.sent}/"
        attempts.stored, attempts.returned_at = False, None
        if request.started_at is None:
            request.started_at = now
        return Chunk(
            request=request,
            engine_id=slot.engine_id,
            rid=attempts.rid,
            max_new_tokens=budget,
            kv_tokens=total_len,
            move=move,
            migrated=bool(request.engines) and request.engines[-1] != slot.engine_id,
            number=slot.started,
            undivided=not divisible(request),
            reads=slot.reads,
            image_tokens=request.group.image_tokens,
        )

    @staticmethod
    def _lost(attempts: Attempts, error: Exception | None) -> None:
        attempts.rid, attempts.stored = "", False  # the stored KV may not match our tokens
        if isinstance(error, BadReply):  # perhaps it was the count before that was wrong
            attempts.request.group.forget_count()

    def _grow(self, reply: ChunkReply, chunk: Chunk, now: float) -> None:
        request = chunk.request
        request.append(reply)
        request.engines.append(chunk.engine_id)
        request.chunk_lengths.append(len(reply.ids))
        if reply.finish == "stop":
            self._finish(request, "stop", reply.matched, now)
        elif request.remaining <= 0:
            # A reply with fewer tokens than requested hit SGLang's own cap per call: continue.
            self._finish(request, "length", None, now)

    def _finish(
        self, request: Request, reason: FinishReason, matched: int | str | None, now: float
    ) -> None:
        request.finish(reason, matched, now)
        if not (request.retain_kv and request.group.growing):
            self._drop(request)
        if request.group.withdrawn:
            return
        self._report_length(request)
        if request.group.complete:
            self._policy.leave(request.group)

    def _report_length(self, request: Request) -> None:
        if request.finish_reason != "abort":  # the full length of an aborted request is unknown
            self._policy.finished(request)

    def _ready(self, request: Request) -> bool:
        """Returns whether a policy has the request: it is pending and waits nowhere else."""
        waits = request in self._unstored or request in self._refused or request in self._suspects
        return request.state is RequestState.PENDING and not waits

    def _add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            followed = self._live.get(request.follows) if request.follows is not None else None
            self._live[request.uid] = Attempts(
                request,
                sent=len(request.engines),  # by an earlier process
                stored=followed is not None and followed.stored,
            )
            self._policy.push(request)

    def _attempts(self, request: Request) -> Attempts | None:
        """Returns the attempts of a live request, not of a later one with the same uid."""
        attempts = self._live.get(request.uid)
        return attempts if attempts is not None and attempts.request is request else None

    def _drop(self, request: Request) -> None:
        if self._attempts(request) is not None:
            del self._live[request.uid]
        self._unstored.leave(request)
        self._refused.leave(request)
        self._suspects.leave(request)
        if self._awaited is not None and self._awaited.reserved_for is request:
            self._await_empty(None, None)
