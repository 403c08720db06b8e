"""The faults of a simulated fleet, read from a YAML file (docs/simulator.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from seer_sgl.bounds import Fraction, Natural
from seer_sgl.config import Section, convert, place_of, read_tree
from seer_sgl.errors import ConfigError

LONGEST_S = 1e9
Kind = Literal["death", "hang", "cut", "reads"]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_S)]
# A lower bound: with many outages per step the simulation would make no progress.
Interval = Annotated[float, msgspec.Meta(ge=0.1, le=LONGEST_S)]
Between = tuple[Seconds, Seconds]  # least and most; drawn uniformly


class OutageConfig(Section, frozen=True):
    """Outages of engines at random times.

    `mean_s`: mean time between two outages of one engine, None for no outages; `seconds`: how long
    an outage lasts; `together`: the share of outages that hit several engines at once, 2 to all.
    """

    mean_s: Interval | None = None
    seconds: Between = (60.0, 300.0)
    together: Fraction = 0.0


class DeathConfig(OutageConfig, frozen=True):
    """Engines die and are restarted, empty. `other_weights`: the share of outages after which
    an engine has other weights first, for as long as it was away."""

    other_weights: Fraction = 0.0


class ReplyConfig(Section, frozen=True):
    """Shares of replies that are lost, come `late_s` late, or come again to the engine's next
    call."""

    lost: Fraction = 0.0
    late: Fraction = 0.0
    late_s: Between = (1.0, 30.0)
    doubled: Fraction = 0.0


class AckConfig(ReplyConfig, frozen=True):
    """Shares of acknowledgements of KV writes; `doubled` ones come twice. `untrue`: half of them
    acknowledge KV that is not in the pool, half report KV as missing that is there."""

    untrue: Fraction = 0.0


class EventConfig(Section, frozen=True):
    """One outage at a given time. `engine`: its number from 0; None: all engines."""

    at_s: Seconds
    kind: Kind
    engine: Natural | None = None
    seconds: Seconds = 60.0
    other_weights: bool = False


class FaultsConfig(Section, frozen=True):
    """The whole file. The timeouts are those of `engines` in a fleet's config."""

    seed: Natural = 1
    stall_timeout_s: Interval = 120.0
    recovery_timeout_s: Interval = 60.0
    deaths: DeathConfig = msgspec.field(default_factory=DeathConfig)
    hangs: OutageConfig = msgspec.field(default_factory=OutageConfig)
    cuts: OutageConfig = msgspec.field(default_factory=OutageConfig)
    reads: OutageConfig = msgspec.field(default_factory=OutageConfig)  # of KV from the pool
    replies: ReplyConfig = msgspec.field(default_factory=ReplyConfig)
    acks: AckConfig = msgspec.field(default_factory=AckConfig)
    events: tuple[EventConfig, ...] = ()

    @property
    def outages(self) -> dict[Kind, OutageConfig]:
        """The outages at random times, by kind."""
        return {"death": self.deaths, "hang": self.hangs, "cut": self.cuts, "reads": self.reads}


def read_faults(path: Path, engines: int) -> FaultsConfig:
    """Returns the faults of a file for a fleet of `engines`.

    Raises ConfigError with one line that names the file, the line and the key.
    """
    tree, where = read_tree(path)
    if not tree:
        raise ConfigError(f"{path}: it has no faults")
    faults = convert(tree, where, FaultsConfig)
    for key, problem in _impossible(faults, engines):
        raise ConfigError(f"{place_of(key, where) or f'{path}: '}{key}: {problem}")
    return faults


def _impossible(faults: FaultsConfig, engines: int) -> Iterator[tuple[str, str]]:
    spans = {
        "deaths.seconds": faults.deaths.seconds,
        "hangs.seconds": faults.hangs.seconds,
        "cuts.seconds": faults.cuts.seconds,
        "reads.seconds": faults.reads.seconds,
        "replies.late_s": faults.replies.late_s,
        "acks.late_s": faults.acks.late_s,
    }
    for key, (least, most) in spans.items():
        if least > most:
            yield key, f"{least:g} is more than {most:g}"
    replies, acks = faults.replies, faults.acks
    if replies.lost + replies.late + replies.doubled > 1:
        yield "replies", "the shares add up to more than 1"
    if acks.lost + acks.late + acks.doubled + acks.untrue > 1:
        yield "acks", "the shares add up to more than 1"
    for number, event in enumerate(faults.events):
        if event.engine is not None and event.engine >= engines:
            yield f"events[{number}].engine", f"{event.engine}; there are {engines} engines, from 0"
        if event.other_weights and event.kind != "death":
            yield f"events[{number}].other_weights", "only a death changes weights"
