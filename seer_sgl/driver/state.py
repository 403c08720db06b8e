"""The state of an engine in the schedule, for reports."""

from typing import Self

import msgspec

from seer_sgl.scheduling.engine_index import EngineSlot

from .health import Health, State


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: `inflight` chunks of the driver, and whether it receives more.

    `promised_tokens`: KV that the ledger reserves for these chunks; None without a ledger.
    `stale`: why it missed a weight update; None if it did not. `why`: the reason of its state.
    """

    engine_id: str
    inflight: int
    promised_tokens: int | None
    available: bool
    leaving: bool
    stale: str | None
    state: State
    why: str

    @classmethod
    def of(cls, slot: EngineSlot, health: Health) -> Self:
        return cls(
            engine_id=slot.engine_id,
            inflight=slot.inflight,
            promised_tokens=None if slot.ledger is None else slot.ledger.used,
            available=slot.available,
            leaving=slot.leaving,
            stale=health.lacks,
            state=health.state,
            why=health.why,
        )
