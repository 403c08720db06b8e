"""Which engine has which of SGLang's own sessions: their requests run nowhere else."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .errors import BadRequest

MOST_SESSIONS = 1 << 16  # beyond, the oldest is forgotten


class Session(msgspec.Struct):
    """A session of an engine. `turns`: by rid, the turn before it.

    `ambiguous`: two turns of one rid may be in the tree of its turns.
    """

    engine_id: str
    turns: dict[str, str | None] = {}
    ambiguous: bool = False

    def take_turn(self, params: dict[str, Any], rids: Sequence[str]) -> None:
        """Records a turn. Raises BadRequest for one that the engine would fail at.

        SGLang forgets the successors of a turn by their rids, and fails at one that it has
        forgotten already (`SessionReqNode.clear`).
        """
        before, replaces = params.get("rid"), bool(params.get("replace"))
        if before is not None and replaces and self.ambiguous:
            raise BadRequest(
                "session_params: replace: two turns of this session had one rid, and SGLang would "
                "fail; open another session"
            )
        for rid in rids:
            # A turn that replaces all after the one before leaves no other of its name there.
            again = replaces and before is not None and self.turns.get(rid) == before
            self.ambiguous |= rid in self.turns and not again
            self.turns[rid] = before


class Pinned:
    """The sessions that were opened with `/open_session`."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}  # by session id, the oldest first
        self.running = 0  # requests that their engines have

    def add(self, session_id: str, engine_id: str) -> None:
        self._sessions[session_id] = Session(engine_id)
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def pop(self, session_id: str) -> str | None:
        """Forgets a session and returns its engine; None if it is unknown."""
        session = self._sessions.pop(session_id, None)
        return None if session is None else session.engine_id

    @contextlib.contextmanager
    def on_engine(self) -> Iterator[None]:
        """Counts a request as running on its engine."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def of(self, session_params: object) -> Session | None:
        """Returns the session of a request with SGLang's `session_params`; None: any engine."""
        session_id = session_params.get("id") if isinstance(session_params, dict) else None
        return self._sessions.get(session_id) if isinstance(session_id, str) else None
