"""The report on grouped drafting in a run: counters of engines and hub, read before and after it.

The report omits an engine that does not answer. The counters of an engine that was restarted during
the run begin at its restart.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Protocol, Self, TypeVar

import msgspec

from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineError
from seer_sgl.link.hub import HubClient
from seer_sgl.timing import DEFAULT

logger = logging.getLogger(__name__)
SOURCES = ("prompt", "own", "here", "elsewhere")
LASTING = frozenset({"max_s"})  # not subtracted: the maximum since the engine's start
Width = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}$")]  # a key of a JSON object
Facts = dict[str, Any]


class Drafting(Protocol):
    """The interface to an engine that drafts."""

    @property
    def info(self) -> EngineInfo:
        """The engine's description."""

    async def drafting(self) -> Facts | None:
        """Returns the engine's drafting counters since its start. Raises EngineError."""


class WaitCounts(msgspec.Struct, frozen=True):
    """The facts of a `seer_sgl.draft.waits.Waits`, decoded."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0

    def facts(self) -> Facts:
        """Returns the mean and the maximum in seconds; null without any wait."""
        mean = round(self.sum_s / self.count, 4) if self.count else None
        return {"mean": mean, "max": round(self.max_s, 4) if self.count else None}


class ReplicaCounts(msgspec.Struct, frozen=True):
    """The counters of an engine's messages from the hub."""

    received_tokens: int = 0
    refused_tokens: int = 0
    lost_messages: int = 0
    waits: WaitCounts = WaitCounts()


class EngineDraftCounts(msgspec.Struct, frozen=True):
    """The drafting counters of an engine since its start, which `instance` names."""

    instance: str | None = None
    steps: dict[Width, int] = {}  # 1 is plain decoding
    verified_rows: int = 0
    verified_tokens: int = 0
    draft_s: float = 0.0
    sources: dict[str, int] = {}
    drafted_by_position: list[int] = []
    accepted_by_position: list[int] = []
    replica: ReplicaCounts = ReplicaCounts()

    @property
    def drafted(self) -> int:
        """Tokens that were drafted and verified."""
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(self.accepted_by_position)


class HubCounts(msgspec.Struct, frozen=True):
    """The counters of the draft hub since its start, which `instance` names."""

    instance: str | None = None
    groups_begun: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    lag: WaitCounts = WaitCounts()


T = TypeVar("T", EngineDraftCounts, HubCounts)


class FleetDraftCounters(msgspec.Struct, frozen=True):
    """The counters at one time: of engines by id, and of the hub. None: no hub, or no answer."""

    engines: dict[str, EngineDraftCounts] = {}
    hub: HubCounts | None = None

    @classmethod
    def of(cls, engines: Mapping[str, Facts], hub: Facts | None) -> Self:
        """Returns counters as they were reported, without those that are not valid."""
        parts = {name: _decoded(facts, EngineDraftCounts) for name, facts in engines.items()}
        return cls(
            {name: part for name, part in parts.items() if part is not None},
            None if hub is None else _decoded(hub, HubCounts),
        )

    @property
    def drafted(self) -> int:
        """Tokens that were drafted and verified."""
        return sum(part.drafted for part in self.engines.values())

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(part.accepted for part in self.engines.values())


def _decoded(facts: Facts, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(facts, kind)
    except msgspec.ValidationError:  # another version of the plugin or of the hub
        return None


async def read(
    engines: Sequence[Drafting],
    drafts: HubClient | None,
    timeout_s: float = DEFAULT.draft_read_s,
) -> FleetDraftCounters:
    """Returns the current counters of all engines and the hub, read concurrently.

    Never raises. The counters of an engine that does not answer are missing; the reason is logged.
    """
    if not engines:
        return FleetDraftCounters()

    async def read_engine(engine: Drafting) -> Facts | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await engine.drafting()
        except (EngineError, TimeoutError, RuntimeError) as error:  # the last: a closed session
            reason = str(error) or f"no answer within {timeout_s:g} s"
            name = engine.info.engine_id
            logger.warning("engine %s: its drafts were not counted: %s", name, reason)
            return None

    async def read_hub() -> Facts | None:
        return None if drafts is None else await drafts.facts()

    hub, *counters = await asyncio.gather(read_hub(), *map(read_engine, engines))
    pairs = zip(engines, counters, strict=True)
    return FleetDraftCounters.of(
        {engine.info.engine_id: facts for engine, facts in pairs if facts is not None}, hub
    )


def section(before: FleetDraftCounters, after: FleetDraftCounters) -> Facts | None:
    """Returns the report's section `drafting`; None if no engine drafts."""
    if not before.engines and not after.engines:
        return None
    parts: dict[str, EngineDraftCounts] = {}
    for engine_id, counts in after.engines.items():
        part = _since(before.engines.get(engine_id), counts)
        if part is not None:
            parts[engine_id] = part
    hub = None if after.hub is None else _since(before.hub, after.hub)
    sources = sum((Counter(part.sources) for part in parts.values()), Counter[str]())
    known = sum(sources[source] for source in SOURCES)
    return {
        "accept_length": _accept_length(parts.values()),
        "plain_steps": sum(part.steps.get("1", 0) for part in parts.values()),
        "verified_steps": _by_width(parts.values()),
        "drafted_by_position": _added([part.drafted_by_position for part in parts.values()]),
        "accepted_by_position": _added([part.accepted_by_position for part in parts.values()]),
        "sources": {
            source: round(sources[source] / known, 4) if known else None for source in SOURCES
        },
        "draft_cpu_s": round(sum(part.draft_s for part in parts.values()), 3),
        "hub": None if hub is None else _hub(hub),
        "engines": [{"engine_id": name, **_engine(part)} for name, part in parts.items()],
    }


def _since(before: T | None, after: T) -> T | None:
    """Returns the difference of two readings; None without the first one.

    After a restart in between it returns the counters of `after`.
    """
    if before is None:
        return None
    if before.instance != after.instance:
        return after
    difference = _difference(msgspec.to_builtins(before), msgspec.to_builtins(after))
    return msgspec.convert(difference, type(after))


def _difference(before: Any, after: Any) -> Any:
    """Returns `after` with the numbers of `before` subtracted at the same positions."""
    if isinstance(after, dict):
        old = before if isinstance(before, dict) else {}
        return {
            key: value if key in LASTING else _difference(old.get(key), value)
            for key, value in after.items()
        }
    if isinstance(after, list):
        old_items = before[: len(after)] if isinstance(before, list) else []
        return [_difference(old_item, item) for old_item, item in zip_longest(old_items, after)]
    if isinstance(after, int | float) and isinstance(before, int | float):
        return after - before
    return after


def _engine(part: EngineDraftCounts) -> Facts:
    replica = part.replica
    return {
        "accept_length": _accept_length([part]),
        "plain_steps": part.steps.get("1", 0),
        "verified_steps": sum(_by_width([part]).values()),
        "draft_cpu_s": round(part.draft_s, 3),
        "received_tokens": replica.received_tokens,
        "refused_tokens": replica.refused_tokens,
        "lost_messages": replica.lost_messages,
        "wait_s": replica.waits.facts(),
    }


def _hub(hub: HubCounts) -> Facts:
    return {
        "lag_s": hub.lag.facts(),
        "tokens_in": hub.tokens_in,
        "tokens_out": hub.tokens_out,
        "groups": hub.groups_begun,
    }


def _accept_length(parts: Iterable[EngineDraftCounts]) -> float | None:
    counts = [(part.verified_tokens, part.verified_rows) for part in parts]
    rows = sum(count for _, count in counts)
    return round(sum(tokens for tokens, _ in counts) / rows, 3) if rows else None


def _by_width(parts: Iterable[EngineDraftCounts]) -> dict[str, int]:
    """Returns the number of verification steps by width, ascending; width 1 is left out."""
    steps: Counter[str] = Counter()
    for part in parts:
        steps.update({width: count for width, count in part.steps.items() if count})
    del steps["1"]
    return {width: steps[width] for width in sorted(steps, key=int)}


def _added(lists: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]
