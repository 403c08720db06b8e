"""The sums of the figures of chunks: of report, live progress, metrics and the server's replies."""

from .types import ChunkFigures


class Totals:
    """The sums of the figures of many chunks."""

    def __init__(self) -> None:
        self.chunks = 0
        self.tokens = 0
        self.migrations = 0
        self.fetches = 0  # chunks for which an engine read KV from the pool
        self.planned_fetches = 0
        self.device = self.host = self.storage = 0
        self.moved_bytes = 0
        self.reused = 0
        self.recomputed = 0
        self.retractions = 0
        self.verify_steps = 0
        self.speculated = 0

    def add(self, chunk: ChunkFigures) -> None:
        """Adds the figures of a chunk."""
        self.chunks += 1
        self.tokens += chunk.tokens
        self.migrations += chunk.migrated
        self.fetches += chunk.storage > 0
        self.planned_fetches += chunk.planned_fetch
        self.device += chunk.device
        self.host += chunk.host
        self.storage += chunk.storage
        self.moved_bytes += chunk.moved_bytes
        self.reused += chunk.reused
        self.recomputed += chunk.recomputed
        self.retractions += chunk.retractions
        self.verify_steps += chunk.verify_steps
        self.speculated += chunk.speculated

    @property
    def accept_length(self) -> float | None:
        """Tokens of chunks with verifications, per verification; None without any."""
        return self.speculated / self.verify_steps if self.verify_steps else None
