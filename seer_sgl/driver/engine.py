"""What the driver needs of engines, whatever stands behind them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from seer_sgl.link.hub import DraftSink
from seer_sgl.link.server import OnRates, OnStored
from seer_sgl.types import Chunk, ChunkReply, EngineInfo, EngineLoad

# Receives the tokens of a chunk as they come, each once, as replies of their own; they are final.
OnTokens = Callable[[ChunkReply], None]


class Engine(Protocol):
    """One engine. Raises EngineError, nothing else."""

    @property
    def info(self) -> EngineInfo:
        """Its description, as of when it joined or last came back."""

    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        """Run one chunk to its end. Cancelling the call aborts it on the engine.

        on_tokens: receives the tokens as they come; the reply has all of them nevertheless.
        """

    async def abort(self, chunk: Chunk) -> None:
        """End a chunk early: `generate` returns soon, with the tokens there are."""

    async def load(self) -> EngineLoad:
        """Returns how busy the engine is now."""

    async def problem(self, weight_version: str | None = None) -> str | None:
        """Returns why the engine cannot serve now; None when it generates and still is what it
        was. weight_version: that it must serve if it was started again; None: what it served."""

    async def refresh(self) -> EngineInfo:
        """Returns its description of now, which `info` then is."""


class PluginLink(Protocol):
    """Where the plugins of the engines report."""

    on_stored: OnStored
    on_rates: OnRates

    def forget(self, instance: str, uid: str, keep: int) -> None:
        """Let the KV of a request beyond its first `keep` tokens leave the pool."""


class EngineFleet(Protocol):
    """Engines that are up, what they are linked by, and the draft hub if they draft."""

    @property
    def engines(self) -> Sequence[Engine]:
        """Those that are there now."""

    @property
    def link(self) -> PluginLink:
        """Where their plugins report."""

    @property
    def drafts(self) -> DraftSink | None:
        """The draft hub; None if no engine drafts with the others."""
