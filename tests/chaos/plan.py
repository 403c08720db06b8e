"""The plan of a chaotic rollout: faults drawn from a seed. Pure.

A fault is due when the rollout has a share of its tokens. So the same seed gives the same faults at
the same places, although their seconds differ from machine to machine.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

Place = Literal["engine", "store", "master", "hub", "http", "link", "hub link"]
Deed = Literal[
    "kill in a chunk",
    "kill in a prefill",
    "kill in a write",
    "kill at its start",
    "kill",
    "stop",
    "stop for long",
    "throttle",
    "slow",
    "cut",
    "drop",
    "reset",
    "half-close",
]

STALL_TIMEOUT_S = 20.0  # of the fleet; a stop is shorter, a stop for long is longer
FIRST, LAST = 0.05, 0.7  # shares: chunks are in flight, and enough of the rollout is left


class Kind(msgspec.Struct, frozen=True):
    """A kind of fault. `seconds`: least and most; how long it lasts."""

    deed: Deed
    place: Place
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """The kind in words."""
        return f"{self.deed}: {self.place}"


KINDS: tuple[Kind, ...] = (
    Kind("kill in a chunk", "engine"),
    Kind("kill in a prefill", "engine"),
    Kind("kill in a write", "engine"),
    Kind("kill at its start", "engine", (0.5, 8.0)),  # until the second kill
    Kind("stop", "engine", (2.0, 12.0)),
    Kind("stop for long", "engine", (30.0, 30.0)),
    Kind("throttle", "engine", (5.0, 15.0)),
    *(Kind("kill", place) for place in ("store", "master", "hub")),
    *(Kind("stop", place, (1.0, 10.0)) for place in ("store", "master", "hub")),
    *(
        kind
        for place in ("http", "link", "hub link")
        for kind in (
            Kind("slow", place, (3.0, 10.0)),
            Kind("cut", place, (1.0, 12.0)),
            Kind("drop", place, (1.0, 5.0)),
            Kind("reset", place),
            Kind("half-close", place),
        )
    ),
)


class Fault(msgspec.Struct, frozen=True):
    """One fault. `at`: the share of the rollout's tokens. `target`: an engine's id (for `engine`
    and `http`), else the place. `seconds`: how long it lasts."""

    at: float
    kind: Kind
    target: str
    seconds: float

    def __str__(self) -> str:
        lasts = f", {self.seconds:.1f} s" if self.seconds else ""
        return f"at {self.at:.3f}: {self.kind.name} {self.target}{lasts}"


def draw(seed: int, engines: int, rounds: int = 1, kinds: Sequence[Kind] = KINDS) -> list[Fault]:
    """Returns the faults of a seed in the order of their times: each kind once per round.

    The faults of each place go to its engines in turn. So no engine is killed so often in a row
    that it would be quarantined.
    """
    draws = random.Random(seed)
    span = (LAST - FIRST) / rounds
    turns = {place: _turns(draws, engines) for place in ("engine", "http")}
    faults = []
    for number in range(rounds):
        for kind in draws.sample(kinds, len(kinds)):
            at = FIRST + span * (number + draws.random())
            target = next(turns[kind.place]) if kind.place in turns else kind.place
            faults.append(Fault(at, kind, target, draws.uniform(*kind.seconds)))
    return sorted(faults, key=lambda fault: fault.at)


def _turns(draws: random.Random, engines: int) -> Iterator[str]:
    ids = [f"e{number}" for number in range(engines)]
    return itertools.cycle(draws.sample(ids, engines))
