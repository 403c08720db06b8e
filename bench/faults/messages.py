"""The fates of an engine's replies and acknowledgements, drawn one by one."""

import random
from collections import Counter
from typing import NamedTuple

from .faults import AckConfig, FaultsConfig, ReplyConfig


class Fate(NamedTuple):
    """What happens to a message: it arrives `copies` times, `delay_s` seconds late."""

    copies: int = 1
    delay_s: float = 0.0


class Ack(NamedTuple):
    """What an acknowledgement of a KV write reports, and whether the KV is in the pool."""

    fate: Fate
    complete: bool = True
    present: bool = True


class FleetFaults:
    """The faults of all engines of a fleet, and what they have done."""

    def __init__(self, config: FaultsConfig) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()  # the faults that happened, by name


class MessageFaults:
    """Draws the fates of one engine's messages."""

    def __init__(self, faults: FleetFaults, engine_id: str) -> None:
        self._replies = faults.config.replies
        self._acks = faults.config.acks
        self._counts = faults.counts
        self._random = random.Random(f"{faults.config.seed} {engine_id}")

    def reply(self) -> Fate:
        """Returns the fate of the next reply."""
        return self._fate(self._replies, "replies", self._random.random())

    def ack(self) -> Ack:
        """Returns the fate of the next acknowledgement."""
        acks, draw = self._acks, self._random.random()
        honest = draw - acks.untrue
        if honest >= 0:
            return Ack(self._fate(acks, "acks", honest))
        self._counts["untrue acks"] += 1
        complete = self._random.random() < 0.5
        return Ack(Fate(), complete=complete, present=not complete)

    def _fate(self, shares: ReplyConfig | AckConfig, name: str, draw: float) -> Fate:
        if draw < shares.lost:
            self._counts[f"lost {name}"] += 1
            return Fate(copies=0)
        if draw < shares.lost + shares.late:
            self._counts[f"late {name}"] += 1
            return Fate(delay_s=self._random.uniform(*shares.late_s))
        if draw < shares.lost + shares.late + shares.doubled:
            self._counts[f"doubled {name}"] += 1
            return Fate(copies=2)
        return Fate()
