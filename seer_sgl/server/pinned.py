"""Which engine has which of SGLang's own sessions: their requests run nowhere else."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .errors import BadRequest

MOST_SESSIONS = 1 << 16  # beyond, the oldest is forgotten
MOST_TURNS = 1 << 18  # of all sessions; beyond, those of the oldest session are forgotten


class PinnedSession(msgspec.Struct):
    """A session of an engine. `turns`: by rid, the turn before it.

    `ambiguous`: two turns of one rid may be in the tree of its turns. `media`: a turn had images or
    the like. `running`: turns that the engine has. `left`: names of turns whose clients left.
    `idle`: set once no turn runs, if the session is to be closed then.
    """

    engine_id: str
    turns: dict[str, str | None] = {}
    ambiguous: bool = False
    media: bool = False
    running: int = 0
    left: list[str] = []
    idle: asyncio.Event | None = None

    def take_turn(self, params: dict[str, Any], rids: Sequence[str]) -> None:
        """Records a turn. Raises BadRequest for one that the engine would fail at.

        SGLang forgets the successors of a turn by their rids, and fails at one that it has
        forgotten already (`SessionReqNode.clear`).
        """
        if self.idle is not None:
            raise BadRequest(f"session_params: close was requested for {params['id']!r:.80}")
        before, replaces = params.get("rid"), bool(params.get("replace"))
        if before is not None and replaces and self.ambiguous:
            raise BadRequest(
                "session_params: replace: two turns of this session may have had one rid, and "
                "SGLang would fail; open another session"
            )
        for rid in rids:
            # A turn that replaces all after the one before leaves no other of its name there.
            again = replaces and before is not None and self.turns.get(rid) == before
            self.ambiguous |= rid in self.turns and not again
            self.turns[rid] = before

    def forget_turns(self) -> None:
        self.turns, self.ambiguous = {}, True


class Pinned:
    """The sessions that were opened with `/open_session`."""

    def __init__(self) -> None:
        self._sessions: dict[str, PinnedSession] = {}  # by session id, the oldest first
        # Those of which turns are kept, in the order of their first turns.
        self._with_turns: dict[str, PinnedSession] = {}
        self._turns = 0
        self.running = 0  # requests that their engines have

    def add(self, session_id: str, engine_id: str) -> None:
        self._sessions[session_id] = PinnedSession(engine_id)
        if len(self._sessions) > MOST_SESSIONS:
            self.pop(next(iter(self._sessions)))

    def pop(self, session_id: str) -> str | None:
        """Forgets a session and returns its engine; None if it is unknown."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        self._turns -= len(session.turns)
        self._with_turns.pop(session_id, None)
        return session.engine_id

    def take_turn(
        self, session: PinnedSession, params: dict[str, Any], rids: Sequence[str]
    ) -> None:
        """Records a turn. Raises BadRequest as the session does."""
        before = len(session.turns)
        session.take_turn(params, rids)
        if self._sessions.get(params["id"]) is not session:
            return  # closed meanwhile
        self._turns += len(session.turns) - before
        self._with_turns[params["id"]] = session
        while self._turns > MOST_TURNS:
            oldest = self._with_turns.pop(next(iter(self._with_turns)))
            self._turns -= len(oldest.turns)
            oldest.forget_turns()

    @contextlib.contextmanager
    def on_engine(
        self, session: PinnedSession, rids: Sequence[str], *, media: bool
    ) -> Iterator[None]:
        """Counts a turn as running on its engine."""
        self.running += 1
        session.running += 1
        session.media |= media
        try:
            yield
        except asyncio.CancelledError:
            session.left += rids
            raise
        finally:
            self.running -= 1
            session.running -= 1
            if not session.running and session.idle is not None:
                session.idle.set()

    def of(self, session_params: object) -> PinnedSession | None:
        """Returns the session of a request with SGLang's `session_params`; None: any engine."""
        session_id = session_params.get("id") if isinstance(session_params, dict) else None
        return self._sessions.get(session_id) if isinstance(session_id, str) else None
