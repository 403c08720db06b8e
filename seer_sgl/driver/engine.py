"""The interfaces that the driver requires of engines, plugin link and fleet."""

from collections.abc import Sequence
from typing import Protocol

from seer_sgl.engine_types import EngineInfo, EngineLoad, EngineProblem, ServerState
from seer_sgl.link.hub import HubClient
from seer_sgl.link.server import OnRates, OnStored
from seer_sgl.types import Chunk, ChunkReply, OnTokens


class Engine(Protocol):
    """One engine. Its methods raise EngineError only."""

    @property
    def info(self) -> EngineInfo:
        """The engine's description from the time it joined or last came back."""

    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        """Runs one chunk and returns its reply. Cancelling the call aborts it on the engine.

        on_tokens: receives the tokens as the engine produces them. The reply has all of them too.
        """

    async def abort(self, chunk: Chunk) -> None:
        """Ends a chunk early: `generate` then returns the tokens generated so far."""

    async def load(self) -> EngineLoad:
        """Returns the current load of the engine."""

    def close_session(self, uid: str) -> None:
        """Closes the session of a request on an engine with sessions, soon."""
        return

    async def settle(self) -> None:
        """Waits until the sessions are closed. Raises nothing."""
        return

    async def waiting(self) -> Sequence[str]:
        """Returns the ids of the queued requests that wait for their KV from the pool."""
        return ()

    async def problem(self, weight_version: str | None = None) -> EngineProblem | None:
        """Returns the reason why the engine cannot serve; None if it generates and is unchanged.

        weight_version: the version that a restarted engine must serve; None: the one it served
        before.
        """

    @property
    def server(self) -> ServerState:
        """The state of its server process."""
        return ServerState()

    async def restore(self, current: EngineInfo) -> str | None:
        """Loads the weights of another description into a server that was restarted.

        They come from the folder of the last update from disk. Returns why the engine does not have
        them; None if it has.
        """
        return "its server was started elsewhere"

    async def refresh(self) -> EngineInfo:
        """Returns the engine's current description, and stores it as `info`."""

    def end_server(self, why: str) -> None:
        """Has a server that hangs ended and restarted, unless it was started elsewhere."""
        return


class PluginLink(Protocol):
    """The server that receives the reports of the engines' plugins."""

    on_stored: OnStored
    on_rates: OnRates

    def forget(self, instance: str, uid: str, keep: int) -> None:
        """Releases the KV of a request beyond its first `keep` tokens from the pool."""


class EngineFleet(Protocol):
    """The running engines, the link to their plugins, and the draft hub if they draft."""

    @property
    def engines(self) -> Sequence[Engine]:
        """The current engines."""

    @property
    def link(self) -> PluginLink:
        """The server that receives the reports of the engines' plugins."""

    @property
    def drafts(self) -> HubClient | None:
        """The draft hub; None if the engines share no drafts."""
