"""When a group is given up, and when an engine is out, because chunks bring nothing.

A refusal is one engine's opinion of a request. Another engine decides: if it refuses the request
as well, the request is at fault, else the first engine is.
"""

from seer_sgl.errors import ChunkAborted, ChunkInterrupted, EngineUnavailable, RequestRejected
from seer_sgl.types import Failure, FailureKind, Request

from .engine_index import EngineIndex, EngineSlot

# Chunks of one request that bring nothing so many times in a row, for as long as an outage may
# last, are not bad luck.
MAX_CONSECUTIVE_FAILURES = 5
# An abort comes from outside and is no failure of the request; but an engine that aborts every
# chunk before its first token must not hold a group for ever.
MAX_CONSECUTIVE_ABORTS = 100
# An engine that refuses requests of so many groups, none of which another engine has refused, and
# serves nothing in between, refuses everything.
MAX_REFUSED_GROUPS = 3


class Setbacks:
    """Judges requests and engines by the chunks that came back without a token.

    `patience_s`: a group is not given up for failures that have lasted less than this.
    """

    def __init__(self, fleet: EngineIndex, patience_s: float) -> None:
        self._fleet = fleet
        self._patience_s = patience_s
        self._awake_s = 0.0

    def looked(self, seconds: float) -> None:
        """So much time has passed, without the time in which this process was stopped."""
        self._awake_s += seconds

    def forgiven(self, request: Request, slot: EngineSlot) -> None:
        """A chunk of the request brought tokens from the engine."""
        request.failures, request.aborts, request.failing_since = 0, 0, None
        request.setbacks.clear()
        slot.served += 1
        slot.trouble = ""
        slot.refused.clear()

    def failed(self, request: Request, slot: EngineSlot, error: Exception | None) -> None:
        """A chunk brought nothing; without an `error` it was aborted before its first token. An
        engine that refuses one group after another is out."""
        if error is None or isinstance(error, ChunkAborted):
            request.aborts += 1
        else:
            request.failures += 1
        if request.failing_since is None:
            request.failing_since = self._awake_s
        last = error or EngineUnavailable("the engine aborted it without a token")
        request.setbacks[slot.engine_id] = last
        if not isinstance(error, ChunkInterrupted):
            slot.trouble = str(last)
        if isinstance(error, RequestRejected):
            slot.refused.add(request.group.uid)
            if len(slot.refused) >= MAX_REFUSED_GROUPS:
                slot.available = False
                self._fleet.changed(slot)

    def verdict(self, request: Request, slot: EngineSlot) -> Failure | None:
        """Why the request's group is given up, after `slot` brought nothing; None if it is not."""
        last = request.setbacks[slot.engine_id]
        if isinstance(last, RequestRejected):
            if len(request.refusals) > 1:
                self._confirm(request)
                refusals = f"two engines refused it: {'; '.join(request.refusals)}"
                return Failure(FailureKind.REFUSED, refusals)
            if len(self._fleet) == 1 and slot.available:
                return Failure(FailureKind.REFUSED, str(last))
        if self._hopeless(request):
            lost = request.failures + request.aborts
            message = f"{lost} chunks in a row failed; last error: {last}"
            return Failure(FailureKind.LOST, message)
        return None

    def others(self, request: Request) -> list[EngineSlot]:
        """The available engines that have not refused the request."""
        return [
            slot
            for slot in self._fleet
            if slot.available
            and not isinstance(request.setbacks.get(slot.engine_id), RequestRejected)
        ]

    def _confirm(self, request: Request) -> None:
        """Two engines agree about the request: its refusal is held against neither."""
        for slot in self._fleet:
            slot.refused.discard(request.group.uid)

    def _hopeless(self, request: Request) -> bool:
        """Whether it has failed often, long enough, and not on one engine alone of several."""
        since = request.failing_since
        failed_often = request.failures >= MAX_CONSECUTIVE_FAILURES
        if since is None or not (failed_often or request.aborts >= MAX_CONSECUTIVE_ABORTS):
            return False
        if self._awake_s - since < self._patience_s:
            return False
        untried = (s for s in self._fleet if s.available and s.engine_id not in request.setbacks)
        return len(request.setbacks) > 1 or next(untried, None) is None
