"""What a fleet asks of the code that brings engines up, one engine at a time."""

from pathlib import Path
from typing import NamedTuple, Protocol


class EngineProcess(Protocol):
    """The server process of an engine, wherever it runs (processes.OwnedProcess)."""

    @property
    def log(self) -> Path:
        """The file that takes what the process prints."""

    @property
    def exit_status(self) -> int | None:
        """None while the process runs."""

    def exit_reason(self) -> str | None:
        """How the process ended, in one line; None while it runs."""

    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""

    def last_line(self) -> str:
        """The last line of the log, cut to a line's length."""

    def note_shared_memory(self) -> None:
        """Remember the shared memory of a server that is up, so that it can be removed."""


class EngineStart(NamedTuple):
    """An engine that is coming up. `process` is None for a server that was started elsewhere."""

    engine_id: str
    url: str
    timeout_s: float  # until it must be ready
    process: EngineProcess | None = None

    def exit_reason(self) -> str | None:
        """How its process ended; None while it runs, and for a server started elsewhere."""
        return None if self.process is None else self.process.exit_reason()


class Launcher(Protocol):
    """Brings engines up and ends those that it started.

    Engines come and go one by one, at any time and several at once. `aclose` ends all that is left,
    after a failure or a cancelled start as well.
    """

    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        """Start one more server, or join the one at `url`; does not wait until it is ready.

        Raises ConfigError where the config leaves no room for the engine, or if this launcher
        needs a url or cannot take one; EngineStartError if the engine is stopped meanwhile.
        """

    async def stop(self, engine_id: str) -> None:
        """End the server of an engine and all it started; one that was only joined runs on."""

    async def aclose(self) -> None:
        """End every server that is left."""
