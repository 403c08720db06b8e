"""Which engine has which of SGLang's own sessions: their requests run nowhere else."""

import contextlib
from collections.abc import Iterator

MOST_SESSIONS = 1 << 16  # beyond, the oldest is forgotten


class Pinned:
    """The engines of the sessions that were opened with `/open_session`."""

    def __init__(self) -> None:
        self._engines: dict[str, str] = {}  # session id -> engine id, the oldest first
        self.running = 0  # requests that their engines have

    def add(self, session_id: str, engine_id: str) -> None:
        self._engines[session_id] = engine_id
        if len(self._engines) > MOST_SESSIONS:
            del self._engines[next(iter(self._engines))]

    def pop(self, session_id: str) -> str | None:
        """Forgets a session and returns its engine; None if it is unknown."""
        return self._engines.pop(session_id, None)

    @contextlib.contextmanager
    def on_engine(self) -> Iterator[None]:
        """Counts a request as running on its engine."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def engine_of(self, session_params: object) -> str | None:
        """Returns the engine for a request with SGLang's `session_params`; None: any engine."""
        session_id = session_params.get("id") if isinstance(session_params, dict) else None
        return self._engines.get(session_id) if isinstance(session_id, str) else None
