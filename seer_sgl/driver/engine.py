"""What the rollout loop needs of an engine, whatever stands behind it."""

from typing import Protocol

from seer_sgl.types import Chunk, ChunkReply, EngineInfo, EngineLoad


class Engine(Protocol):
    """One engine. Raises EngineUnavailable or RequestRejected, nothing else."""

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself when it was joined."""

    async def generate(self, chunk: Chunk) -> ChunkReply:
        """Run one chunk to its end. Cancelling the call aborts it on the engine."""

    async def load(self) -> EngineLoad:
        """How busy the engine is now."""

    async def problem(self) -> str | None:
        """Why the engine cannot serve now; None when it generates and still is what it was."""
