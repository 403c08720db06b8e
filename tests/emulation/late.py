"""Copies from the device to the host that arrive late.

A GPU's copy to the host that does not block is complete once the host has waited for an event
recorded after it, or has made a blocking copy. Until then the host reads garbage. On a CPU such a
copy would be complete at once, and a missing wait would pass every test. Only copies that our own
plugin makes are late. Its copies to the device cannot be told from them, because both are "cpu";
there are none (`upload` in walk.py returns its argument on a CPU).
"""

import sys
from typing import Any, NamedTuple

import torch

from .counts import Counts
from .waits import Waits

OURS = "seer_sgl.plugin"
GARBAGE = 99  # no length, node or token of a short test


class _Copy(NamedTuple):
    target: torch.Tensor
    value: torch.Tensor


class LateCopies:
    """The copies under way, in the order of the device's one stream."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._copies: list[_Copy] = []
        self._queued = 0  # copies, since the start
        self._arrived = 0

    def queue(self, source: torch.Tensor) -> torch.Tensor:
        """Returns the host's tensor, which holds garbage until the copy arrives."""
        target = torch.full_like(source, GARBAGE)
        self._copies.append(_Copy(target, source.clone()))
        self._queued += 1
        return target

    def now(self) -> int:
        """Returns the number of copies that an event recorded now comes after."""
        return self._queued

    def wait(self, queued: int) -> None:
        """Completes the first `queued` copies."""
        while self._arrived < queued:
            copy = self._copies.pop(0)
            copy.target.copy_(copy.value)
            self._arrived += 1
            self._counts.late += 1


def install(counts: Counts, waits: Waits) -> None:
    """Makes our own copies late, and reports what the host waits for."""
    copies, to, cpu = LateCopies(counts), torch.Tensor.to, torch.Tensor.cpu

    def late_to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if args == ("cpu",) and options == {"non_blocking": True} and _called_by_us():
            return copies.queue(tensor)
        return to(tensor, *args, **options)

    def blocking_copy(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if _called_by_us():
            copies.wait(copies.now())
            waits.everything_waited_for()
        return cpu(tensor, *args, **options)

    def record(event: Any, *_: object) -> None:
        event.emulated_after = copies.now()
        waits.record(event)

    def synchronize(event: Any) -> None:
        copies.wait(getattr(event, "emulated_after", 0))
        waits.result_waited_for(event)

    for owner, name, stand_in in (
        (torch.Tensor, "to", late_to),
        (torch.Tensor, "cpu", blocking_copy),
        (torch.cpu.Event, "record", record),
        (torch.cpu.Event, "synchronize", synchronize),
    ):
        setattr(owner, name, stand_in)


def _called_by_us() -> bool:
    """Returns whether the plugin made the call that a function of this module stands for."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return bool(name.startswith(OURS))
