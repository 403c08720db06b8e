"""The figures of a chunk that came back, and their sums: each is defined here, and only here.

Report, live progress, metrics and replies of the server add the same figures up. Pure.
"""

import msgspec

from .types import Chunk, ChunkReply, Move


class ChunkFigures(msgspec.Struct, frozen=True):
    """The figures of one chunk with a reply. All but `migrated`, `planned_fetch` and `retractions`
    are tokens, or bytes, or steps."""

    tokens: int
    """Response tokens."""
    migrated: bool
    """It ran on another engine than the chunk before."""
    planned_fetch: bool
    """It was placed on an engine that should read KV from the pool."""
    device: int
    """Input tokens whose KV was cached on the device."""
    host: int
    """Likewise in the engine's host memory."""
    storage: int
    """Likewise in the pool."""
    moved_bytes: int
    """The KV of `storage`."""
    reused: int
    """Input tokens of a continuation whose KV was cached."""
    recomputed: int
    """Those that were computed again. SGLang always computes the last input token, even if all of
    them are cached; it does not count."""
    retractions: int
    """Preemptions inside the engine (`meta_info.num_retractions`)."""
    verify_steps: int
    """Verifications of drafts."""
    speculated: int
    """Response tokens, if there was a verification."""

    @classmethod
    def of(cls, chunk: Chunk, reply: ChunkReply, kv_bytes_per_token: int = 0) -> "ChunkFigures":
        """Returns the figures of a chunk. A passthrough is not read, so it continues nothing."""
        continues = chunk.continues and not reply.passthrough
        given = chunk.input_len if reply.input_tokens is None else reply.input_tokens
        return cls(
            tokens=len(reply.ids),
            migrated=chunk.migrated,
            planned_fetch=chunk.move is Move.FETCH,
            device=reply.cached_device,
            host=reply.cached_host,
            storage=reply.cached_storage,
            moved_bytes=reply.cached_storage * kv_bytes_per_token,
            reused=reply.cached if continues else 0,
            recomputed=max(0, given - reply.cached - 1) if continues else 0,
            retractions=reply.retractions,
            verify_steps=reply.verify_steps,
            speculated=len(reply.ids) if reply.verify_steps else 0,
        )


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
        """Generated tokens per verification; None without any."""
        return self.speculated / self.verify_steps if self.verify_steps else None
