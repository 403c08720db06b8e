"""Placements of the systems that Seer is compared with: a request stays on one engine.

Requests are undivided and sent at once; the engines queue and preempt them.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

from seer_sgl.types import Group

from .attempts import Attempts
from .engine_index import EngineIndex, EngineSlot
from .placement import Placed, Wait

# Chooses the engine of a whole group or of one request; None if no engine is available.
Turn = Callable[[EngineIndex], EngineSlot | None]


class PinnedGroups:
    """Sends every request of a group to the engine that `turn` chose for its first request.

    If that engine becomes unavailable or reserved for a suspect, the unsent requests of the group
    get another turn. A pin is removed with its group.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._pins: WeakKeyDictionary[Group, EngineSlot] = WeakKeyDictionary()

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        """Returns the engine of the request's group."""
        request = attempts.request
        slot = self._pins.get(request.group)
        if slot is None or not _open(slot):
            slot = self._turn(fleet)
        if slot is None:
            return Wait.FOR_ROOM
        self._pins[request.group] = slot
        return Placed(slot, fleet.move_without_pool(request, slot))


class SingleRequests:
    """Gives every request its own turn, independent of its group."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        """Returns the engine that `turn` chooses."""
        slot = self._turn(fleet)
        if slot is None:
            return Wait.FOR_ROOM
        return Placed(slot, fleet.move_without_pool(attempts.request, slot))


def _open(slot: EngineSlot) -> bool:
    return slot.available and slot.reserved_for is None


class RoundRobin:
    """Takes the engines in turn."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, fleet: EngineIndex) -> EngineSlot | None:
        """Returns the next available engine; None if no engine is available."""
        slots = list(fleet)
        for skipped in range(len(slots)):
            slot = slots[(self._next + skipped) % len(slots)]
            if _open(slot):
                self._next += skipped + 1
                return slot
        return None
