"""When chunks have waited too long for KV in the queue of one engine: a pure clock.

SGLang passes over a queued request until its KV was read from the pool. A read that takes longer
than to compute the KV again has no use, so the chunks are then taken back, and the engine's next
chunks read no KV for a while.
"""

from collections.abc import Sequence

from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Chunk

PREFILL_TOK_S = 1000.0  # before an engine has measured its rate; a GPU prefills faster


class KvWaits:
    """The chunks of one engine that wait for KV. Times: seconds of the monitor's polls."""

    def __init__(self, timing: Timing = DEFAULT) -> None:
        self._timing = timing
        self._since: dict[str, float] = {}  # by rid
        self._noticed = False
        self._pause_s = timing.kv_first_pause_s  # the next pause
        self._resume_at: float | None = None  # the end of the present pause
        self._resumed_at = 0.0

    def bound_s(self, waiting: Sequence[Chunk], prefill_tok_s: float) -> float:
        """Returns the wait that is too long, in seconds: as long as the engine needs to prefill the
        inputs of all `waiting` chunks, one after the other. prefill_tok_s: 0 if not measured."""
        tokens = sum(chunk.input_len for chunk in waiting)
        return max(self._timing.kv_least_s, tokens / (prefill_tok_s or PREFILL_TOK_S))

    def overdue(self, now: float, waiting: Sequence[Chunk], bound_s: float) -> list[Chunk]:
        """Returns the chunks that have waited for `bound_s`. `waiting`: all that wait now.

        The first of them begins a pause, a short one if reads were in time for long enough. The
        others were sent before it: no new trial has failed.
        """
        self._since = {chunk.rid: self._since.get(chunk.rid, now) for chunk in waiting}
        late = [chunk for chunk in waiting if now - self._since[chunk.rid] >= bound_s]
        if late and self._resume_at is None:
            if now - self._resumed_at >= self._timing.kv_longest_pause_s:
                self._pause_s = self._timing.kv_first_pause_s
            self._resume_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._timing.kv_longest_pause_s)
        return late

    def notice(self, now: float) -> int:
        """Returns the number of waiting chunks once one has waited `kv_notice_s`; 0 until then,
        and afterwards until none waits."""
        long = any(now - since >= self._timing.kv_notice_s for since in self._since.values())
        new = long and not self._noticed
        self._noticed = long or (self._noticed and bool(self._since))
        return len(self._since) if new else 0

    def resumes(self, now: float) -> bool:
        """Returns whether a pause has ended: the engine's next chunks read KV again."""
        if self._resume_at is None or now < self._resume_at:
            return False
        self._resume_at, self._resumed_at = None, now
        return True
