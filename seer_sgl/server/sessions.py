"""Sessions: conversations whose next turn prefers the engine that has the KV of the last one."""

import msgspec

from seer_sgl.types import Request

from .siblings import OpenGroup

MOST_SESSIONS = 65536  # clients choose the names; beyond, the oldest session is forgotten


class _Session(msgspec.Struct):
    request: Request  # of the newest turn
    group: OpenGroup  # the session holds it open, so that its KV stays in the pool
    at: float
    earlier: Request | None  # the newest turn before it that an engine ran

    def last(self) -> Request | None:
        """Returns the newest turn that an engine ran."""
        return self.request if self.request.engines else self.earlier


class Sessions:
    """The newest turn of each session, for `timeout_s` seconds."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def last_turn(self, session_id: str) -> Request | None:
        """Returns the request of the newest turn that an engine ran; None for a new session."""
        session = self._sessions.get(session_id)
        return None if session is None else session.last()

    def took_turn(self, session_id: str, request: Request, group: OpenGroup, now: float) -> None:
        """Records a new turn of a session, which may be its first."""
        before = self._sessions.pop(session_id, None)
        group.holds += 1
        if before is not None:
            before.group.holds -= 1
        earlier = None if before is None else before.last()
        self._sessions[session_id] = _Session(request, group, now, earlier)
        if len(self._sessions) > MOST_SESSIONS:
            self._forget(next(iter(self._sessions)))

    def end(self, session_id: str) -> bool:
        """Forgets a session; returns whether it was known."""
        known = session_id in self._sessions
        if known:
            self._forget(session_id)
        return known

    def expire(self, now: float) -> None:
        """Forgets the sessions without a turn for the timeout."""
        for session_id, session in list(self._sessions.items()):
            if session.group.busy():
                session.at = now
            elif now - session.at >= self._timeout_s:
                self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        self._sessions.pop(session_id).group.holds -= 1
