"""The state of an engine in the schedule, for reports."""

from collections.abc import Mapping
from typing import Self

import msgspec

from seer_sgl.scheduling.engine_index import EngineSlot


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: `inflight` chunks of the driver, and whether it receives more.

    `promised_tokens`: KV that the ledger reserves for these chunks; None without a ledger.
    `stale`: why it missed a weight update; None if it did not.
    """

    engine_id: str
    inflight: int
    promised_tokens: int | None
    available: bool
    leaving: bool
    stale: str | None

    @classmethod
    def of(cls, slot: EngineSlot, stale: Mapping[str, str]) -> Self:
        """Returns the state of a scheduler's slot. `stale`: the reasons by engine id."""
        return cls(
            engine_id=slot.engine_id,
            inflight=slot.inflight,
            promised_tokens=None if slot.ledger is None else slot.ledger.used,
            available=slot.available,
            leaving=slot.leaving,
            stale=stale.get(slot.engine_id),
        )
