"""Where a chunk goes."""

from collections.abc import Iterable
from typing import Protocol

from seer_sgl.types import Request

from .ledger import KVLedger


class EngineSlot:
    """The scheduler's view of one engine."""

    def __init__(self, engine_id: str, ledger: KVLedger | None, max_inflight: int) -> None:
        self.engine_id = engine_id
        self.ledger = ledger  # None: admission by count only (the baseline that retracts)
        self.max_inflight = max_inflight
        self.inflight = 0
        self.completed = 0  # chunks that came back, whatever with
        self.available = True

    def admits(self, request: Request, total_len: int) -> bool:
        """Whether a chunk that grows `request` to `total_len` tokens can start here now."""
        if not self.available or self.inflight >= self.max_inflight:
            return False
        return self.ledger is None or self.ledger.admits(
            request.group.uid, request.prompt_len, total_len
        )


class Placement(Protocol):
    """Chooses the engine of a chunk; None when it should wait (the paper's select_instance)."""

    def choose(
        self, request: Request, total_len: int, engines: Iterable[EngineSlot]
    ) -> EngineSlot | None:
        """An engine that admits the chunk, or None this cycle."""


class LeastLoaded:
    """Fewest chunks in flight; between equals the engine that ran the request last."""

    def choose(
        self, request: Request, total_len: int, engines: Iterable[EngineSlot]
    ) -> EngineSlot | None:
        """The least-loaded engine that admits the chunk, or None this cycle."""
        last = request.engines[-1] if request.engines else None
        best: EngineSlot | None = None
        for slot in engines:
            # The ledger is asked only about an engine that would be an improvement.
            better = (
                best is None
                or slot.inflight < best.inflight
                or (slot.inflight == best.inflight and slot.engine_id == last)
            )
            if better and slot.admits(request, total_len):
                best = slot
        return best
