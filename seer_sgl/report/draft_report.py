"""What grouped drafting did in a run: the counters of engines and hub, read before and after it.

An engine that is away when it is asked is left out; one that started again in between counts from
there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec

from seer_sgl.errors import EngineError
from seer_sgl.link.hub import DraftSink
from seer_sgl.types import EngineInfo

logger = logging.getLogger(__name__)
READ_TIMEOUT_S = 5.0
SOURCES = ("prompt", "own", "here", "elsewhere")
LASTING = frozenset({"max_s"})  # cannot be subtracted: the largest since the start
Width = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}$")]  # a key of a JSON object
Facts = dict[str, Any]
T = TypeVar("T")


class Drafting(Protocol):
    """An engine, as far as it drafts."""

    @property
    def info(self) -> EngineInfo:
        """Which one it is."""

    async def drafting(self) -> Facts | None:
        """What it has counted since it started. Raises EngineError."""


class Reading(NamedTuple):
    """Counters at one time: of the engines that were there, by id, and of the hub."""

    engines: dict[str, Facts]
    hub: Facts | None


class WaitCounts(msgspec.Struct, frozen=True):
    """`seer_sgl.draft.waits.Waits`, over the wire."""

    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0

    def facts(self) -> Facts:
        """Mean and longest, null if there was none."""
        mean = round(self.sum_s / self.count, 4) if self.count else None
        return {"mean": mean, "max": round(self.max_s, 4) if self.count else None}


class ReplicaCounts(msgspec.Struct, frozen=True):
    """What reached an engine from the hub."""

    received_tokens: int = 0
    refused_tokens: int = 0
    lost_messages: int = 0
    waits: WaitCounts = WaitCounts()


class EngineCounts(msgspec.Struct, frozen=True):
    """An engine's part."""

    steps: dict[Width, int] = {}  # 1 is plain decoding
    verified_rows: int = 0
    verified_tokens: int = 0
    draft_s: float = 0.0
    sources: dict[str, int] = {}
    drafted_by_position: list[int] = []
    accepted_by_position: list[int] = []
    replica: ReplicaCounts = ReplicaCounts()


class HubCounts(msgspec.Struct, frozen=True):
    """The hub's part."""

    groups_begun: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    lag: WaitCounts = WaitCounts()


async def read(engines: Sequence[Drafting], drafts: DraftSink | None) -> Reading:
    """Returns the counters of now, asked of all at once. Never raises: the counters of an engine
    that does not answer are missing, and the reason is logged."""
    if not engines:
        return Reading({}, None)

    async def ask(engine: Drafting) -> Facts | None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await engine.drafting()
        except (EngineError, TimeoutError, RuntimeError) as error:  # the last: a closed session
            reason = str(error) or f"no answer within {READ_TIMEOUT_S:g} s"
            name = engine.info.engine_id
            logger.warning("engine %s: its drafts were not counted: %s", name, reason)
            return None

    async def ask_hub() -> Facts | None:
        return None if drafts is None else await drafts.facts()

    hub, *counters = await asyncio.gather(ask_hub(), *map(ask, engines))
    pairs = zip(engines, counters, strict=True)
    return Reading({engine.info.engine_id: one for engine, one in pairs if one is not None}, hub)


def section(before: Reading, after: Reading) -> Facts | None:
    """The report's section `drafting`; None where no engine drafts."""
    if not before.engines and not after.engines:
        return None
    parts: dict[str, EngineCounts] = {}
    for engine_id, facts in after.engines.items():
        part = counted(before.engines.get(engine_id), facts, EngineCounts)
        if part is not None:
            parts[engine_id] = part
    hub = None if after.hub is None else counted(before.hub, after.hub, HubCounts)
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


def counted(before: Facts | None, after: Facts, kind: type[T]) -> T | None:
    """What was counted between the two; None where that is unknown."""
    if before is None:
        return None
    started_again = before.get("instance") != after.get("instance")
    try:
        now = msgspec.convert(after, kind)
        if started_again:
            return now
        then = msgspec.convert(before, kind)
    except msgspec.ValidationError:  # of another version
        return None
    return msgspec.convert(_since(msgspec.to_builtins(then), msgspec.to_builtins(now)), kind)


def _since(before: Any, after: Any) -> Any:
    """The numbers of `after`, less those of `before` in the same place."""
    if isinstance(after, dict):
        old = before if isinstance(before, dict) else {}
        return {
            key: value if key in LASTING else _since(old.get(key), value)
            for key, value in after.items()
        }
    if isinstance(after, list):
        were = before[: len(after)] if isinstance(before, list) else []
        return [_since(was, now) for was, now in zip_longest(were, after)]
    if isinstance(after, int | float) and isinstance(before, int | float):
        return after - before
    return after


def _engine(part: EngineCounts) -> Facts:
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


def _accept_length(parts: Iterable[EngineCounts]) -> float | None:
    counts = [(part.verified_tokens, part.verified_rows) for part in parts]
    rows = sum(count for _, count in counts)
    return round(sum(tokens for tokens, _ in counts) / rows, 3) if rows else None


def _by_width(parts: Iterable[EngineCounts]) -> dict[str, int]:
    """Verifications by their width, ascending."""
    steps: Counter[str] = Counter()
    for part in parts:
        steps.update({width: count for width, count in part.steps.items() if count})
    del steps["1"]
    return {width: steps[width] for width in sorted(steps, key=int)}


def _added(lists: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]
