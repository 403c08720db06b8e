"""What the scheduler remembers of a request while it is live."""

import msgspec

from seer_sgl.errors import RequestRejected
from seer_sgl.types import Request


class Attempts(msgspec.Struct, eq=False, gc=False):  # nothing in it refers back to it
    """The chunks of one request so far, as the scheduler sees them.

    The scheduler makes it when the request is submitted, and drops it when the request is finished
    or given up. The comments name the only file that writes a part.
    """

    request: Request
    # scheduler.py
    sent: int = 0  # chunks, lost ones included: makes SGLang request ids unique
    rid: str = ""  # of the newest chunk; empty if that one was lost, or its KV forgotten
    returned_at: float | None = None  # when that chunk came back; None while it is in flight
    stored: bool = False  # all KV up to the end of the newest chunk is in the pool
    # Its KV did not reach the pool in time. A missing page may stay missing, so it does not wait
    # again until all of its KV is acknowledged.
    no_wait: bool = False
    # setbacks.py
    failures: int = 0  # consecutive chunks without tokens, not counting aborted ones
    aborts: int = 0  # consecutive chunks that were aborted before their first token
    failing_since: float | None = None  # when the first of these chunks ended, awake seconds
    # By engine id: the error of its last chunk, if no chunk of any engine returned tokens since.
    errors: dict[str, Exception] = msgspec.field(default_factory=dict)
    # suspects.py
    engine_deaths: int = 0  # engines that died with it, while it may be the cause
    suspect_until: int = 0  # the response length at which it is not the cause of these deaths
    isolated: bool = False  # its next chunk is the only one of such a request on its engine

    @property
    def may_wait(self) -> bool:
        """Whether the request may wait for its KV to be stored. Without a chunk of its own there is
        nothing to wait for."""
        return bool(self.rid) and not self.no_wait

    @property
    def refusals(self) -> list[str]:
        """The error messages of the engines that refused the request."""
        return [str(error) for error in self.errors.values() if isinstance(error, RequestRejected)]

    def refused_by(self, engine_id: str) -> bool:
        """Returns whether the engine has refused the request."""
        return isinstance(self.errors.get(engine_id), RequestRejected)
