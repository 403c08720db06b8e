"""Placements of the systems Seer is compared with: a request stays on one engine, for good.

Requests are undivided and sent at once; the engines queue them, and preempt.
"""

from typing import Protocol

from seer_sgl.types import Move, Request, RequestState

from .fleet import EngineSlot, Fleet
from .placement import Placed, Verdict


class Turn(Protocol):
    """Chooses the engine of a whole group, or of a request."""

    def __call__(self, fleet: Fleet) -> EngineSlot | None:
        """An engine that is available; None when none is."""


class PinnedGroups:
    """Every request of a group goes to the engine that `turn` chose for the first of them.

    When that engine is away, those that are still to be sent get another turn. Engines take any
    number of requests: a pin is forgotten with the last request it was made for.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._pins: dict[str, tuple[EngineSlot, int]] = {}  # group uid -> engine, still to send

    def choose(
        self, request: Request, total_len: int, fleet: Fleet, patient: bool
    ) -> Placed | Verdict:
        """The engine of the request's group."""
        pin = self._pins.pop(request.group.uid, None) or self._pin(request, fleet)
        if pin is not None and not pin[0].available:
            pin = self._pin(request, fleet)
        if pin is None:
            return Verdict.FULL
        slot, left = pin
        if left > 1:
            self._pins[request.group.uid] = (slot, left - 1)
        return _placed(request, slot, fleet)

    def _pin(self, request: Request, fleet: Fleet) -> tuple[EngineSlot, int] | None:
        slot = self._turn(fleet)
        left = sum(other.state is RequestState.PENDING for other in request.group.requests)
        return None if slot is None else (slot, left)


class SingleRequests:
    """Every request gets a turn of its own, wherever its group is."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def choose(
        self, request: Request, total_len: int, fleet: Fleet, patient: bool
    ) -> Placed | Verdict:
        """The engine whose turn it is."""
        slot = self._turn(fleet)
        return Verdict.FULL if slot is None else _placed(request, slot, fleet)


def _placed(request: Request, slot: EngineSlot, fleet: Fleet) -> Placed:
    moved = fleet.home(request) not in (None, slot)
    return Placed(slot, Move.PREFILL if moved else Move.STAY)


class RoundRobin:
    """Engine after engine."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, fleet: Fleet) -> EngineSlot | None:
        """The next engine in turn that is available."""
        slots = list(fleet)
        for skipped in range(len(slots)):
            slot = slots[(self._next + skipped) % len(slots)]
            if slot.available:
                self._next += skipped + 1
                return slot
        return None


def least_requests(fleet: Fleet) -> EngineSlot | None:
    """The engine with the fewest requests in flight (OpenRLHF's choice for a prompt)."""
    return fleet.least_loaded()
