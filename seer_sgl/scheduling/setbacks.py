"""The rules that give up a request or exclude an engine after chunks without tokens.

If one engine refuses a request, another engine decides: if it refuses the request too, the request
is at fault; else the first engine is.
"""

from seer_sgl.errors import ChunkAborted, ChunkInterrupted, EngineUnavailable, RequestRejected
from seer_sgl.types import Failure, FailureKind, Request

from .engine_index import EngineIndex, EngineSlot

# If so many consecutive chunks of a request fail, over a longer time than an outage may last, the
# failure is permanent.
MAX_CONSECUTIVE_FAILURES = 5
# An abort comes from outside and is not a failure of the request. But an engine that aborts every
# chunk before its first token must not hold a group forever.
MAX_CONSECUTIVE_ABORTS = 100
# An engine refuses everything if it refuses requests of so many groups that no other engine has
# refused, and returns no tokens in between.
MAX_REFUSED_GROUPS = 3


class Setbacks:
    """Judges requests and engines by the chunks that returned without a token.

    `patience_s`: a request is given up only after failures that lasted at least this long.
    """

    def __init__(self, fleet: EngineIndex, patience_s: float) -> None:
        self._fleet = fleet
        self._patience_s = patience_s
        self._awake_s = 0.0

    def elapsed(self, seconds: float) -> None:
        """Adds elapsed time, without the time in which this process was stopped."""
        self._awake_s += seconds

    def forgiven(self, request: Request, slot: EngineSlot) -> None:
        """Clears the failures of a request and an engine after a chunk returned tokens."""
        request.failures, request.aborts, request.failing_since = 0, 0, None
        request.setbacks.clear()
        slot.served += 1
        slot.trouble = ""
        slot.refused.clear()

    def failed(self, request: Request, slot: EngineSlot, error: Exception | None) -> None:
        """Records a chunk without tokens; `error` None: it was aborted before its first token. An
        engine that refuses MAX_REFUSED_GROUPS groups becomes unavailable."""
        if error is None or isinstance(error, ChunkAborted):
            request.aborts += 1
        else:
            request.failures += 1
        if request.failing_since is None:
            request.failing_since = self._awake_s
        last = error or EngineUnavailable("the engine aborted the chunk before its first token")
        request.setbacks[slot.engine_id] = last
        if not isinstance(error, ChunkInterrupted):
            slot.trouble = str(last)
        if isinstance(error, RequestRejected):
            slot.refused.add(request.group.uid)
            if len(slot.refused) >= MAX_REFUSED_GROUPS:
                slot.available = False
                self._fleet.changed(slot)

    def verdict(self, request: Request, slot: EngineSlot) -> Failure | None:
        """Returns the reason to give up the request after a failure on `slot`; None if there is
        none."""
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
        """Returns the available engines that have not refused the request."""
        return [
            slot
            for slot in self._fleet
            if slot.available
            and not isinstance(request.setbacks.get(slot.engine_id), RequestRejected)
        ]

    def _confirm(self, request: Request) -> None:
        """Clears the refusals of the request's group: two engines agree, so neither is at fault."""
        for slot in self._fleet:
            slot.refused.discard(request.group.uid)

    def _hopeless(self, request: Request) -> bool:
        """Returns whether the request failed often and long enough, and on more than one engine if
        there are several."""
        since = request.failing_since
        failed_often = request.failures >= MAX_CONSECUTIVE_FAILURES
        if since is None or not (failed_often or request.aborts >= MAX_CONSECUTIVE_ABORTS):
            return False
        if self._awake_s - since < self._patience_s:
            return False
        untried = (s for s in self._fleet if s.available and s.engine_id not in request.setbacks)
        return len(request.setbacks) > 1 or next(untried, None) is None
