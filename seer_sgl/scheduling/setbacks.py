"""The rules that give up a request or exclude an engine after chunks without tokens.

If one engine refuses a request, another engine decides: if it refuses the request too, the request
is at fault; else the first engine is.
"""

from seer_sgl.errors import ChunkAborted, ChunkInterrupted, EngineUnavailable, RequestRejected
from seer_sgl.types import Failure, FailureKind

from .attempts import Attempts
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

    def reset(self, attempts: Attempts, slot: EngineSlot) -> None:
        """Clears the failures of a request and an engine after a chunk returned tokens."""
        attempts.failures, attempts.aborts, attempts.failing_since = 0, 0, None
        attempts.errors.clear()
        slot.served += 1
        slot.trouble = ""
        slot.refused.clear()

    def failed(self, attempts: Attempts, slot: EngineSlot, error: Exception | None) -> None:
        """Records a chunk without tokens; `error` None: it was aborted before its first token. An
        engine that refuses MAX_REFUSED_GROUPS groups becomes unavailable."""
        if error is None or isinstance(error, ChunkAborted):
            attempts.aborts += 1
        else:
            attempts.failures += 1
        if attempts.failing_since is None:
            attempts.failing_since = self._awake_s
        last = error or EngineUnavailable("the engine aborted the chunk before its first token")
        attempts.errors[slot.engine_id] = last
        if not isinstance(error, ChunkInterrupted):
            slot.trouble = str(last)
        if isinstance(error, RequestRejected):
            slot.refused.add(attempts.request.group.uid)
            if len(slot.refused) >= MAX_REFUSED_GROUPS:
                slot.available = False
                self._fleet.changed(slot)

    def verdict(self, attempts: Attempts, slot: EngineSlot) -> Failure | None:
        """Returns the reason to give up the request after a failure on `slot`; None if there is
        none."""
        last = attempts.errors[slot.engine_id]
        if isinstance(last, RequestRejected):
            if len(attempts.refusals) > 1:
                self._confirm(attempts)
                refusals = f"two engines refused it: {'; '.join(attempts.refusals)}"
                return Failure(FailureKind.REFUSED, refusals)
            if len(self._fleet) == 1 and slot.available:
                return Failure(FailureKind.REFUSED, str(last))
        if self._hopeless(attempts):
            lost = attempts.failures + attempts.aborts
            message = f"{lost} chunks in a row failed; last error: {last}"
            return Failure(FailureKind.LOST, message)
        return None

    def others(self, attempts: Attempts) -> list[EngineSlot]:
        """Returns the available engines that have not refused the request."""
        return [
            slot
            for slot in self._fleet
            if slot.available and not attempts.refused_by(slot.engine_id)
        ]

    def _confirm(self, attempts: Attempts) -> None:
        """Clears the refusals of the request's group: two engines agree, so neither is at fault."""
        for slot in self._fleet:
            slot.refused.discard(attempts.request.group.uid)

    def _hopeless(self, attempts: Attempts) -> bool:
        """Returns whether the request failed often and long enough, and on more than one engine if
        there are several."""
        since = attempts.failing_since
        failed_often = attempts.failures >= MAX_CONSECUTIVE_FAILURES
        if since is None or not (failed_often or attempts.aborts >= MAX_CONSECUTIVE_ABORTS):
            return False
        if self._awake_s - since < self._patience_s:
            return False
        untried = (s for s in self._fleet if s.available and s.engine_id not in attempts.errors)
        return len(attempts.errors) > 1 or next(untried, None) is None
