"""A policy that gathers the last requests on few engines, and gives the others back.

At ends of chunks it packs what the requests have left (packing.py) onto as few engines as end all
in time: within a slack of the time that all engines would take. The other engines close. Chunks
of requests that move end early, with the tokens they have, and their requests continue on the open
engines, which read their KV from the pool. A closed engine is given back when it is empty.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.scheduling.attempts import Attempts
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.engine_index import EngineIndex, EngineSlot
from seer_sgl.scheduling.placement import CacheAware, Placed, Wait
from seer_sgl.scheduling.posterior import LengthPosterior, Spread
from seer_sgl.sim.config import SimConfig
from seer_sgl.types import Chunk, ChunkResult, Failure, Group, Move, Request, RequestState, Sample

from .packing import Packer, Work
from .plan import Left, Plan

BEGIN = 0.8  # the share of the requests that end before engines may close
EVERY = 0.01  # of the time that the rollout is expected to take: the pause between decisions
AT_ONCE = 0.2  # the least share of the open engines that close together: moves cost time
CHANCES = (0.1, 0.3, 0.5, 0.7, 0.9)  # that a response is longer than a length that is planned with


class Lengths(Protocol):
    """What the policy knows of the lengths of responses."""

    def possible(self, request: Request, done: int) -> Sequence[int]:
        """Returns lengths that a running response may have, the longest first, as many and as
        likely for every request. `done`: the tokens that it has."""


class TrueLengths(Lengths):
    """The lengths as they will be. `lengths`: tokens by request uid."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self._lengths = lengths

    @override
    def possible(self, request: Request, done: int) -> Sequence[int]:
        return (self._lengths[request.uid],)


class LikelyLengths(Observer, Lengths):
    """Quantiles of the posterior of the lengths, which learns what that of the policy `seer`
    does."""

    def __init__(self, groups: Sequence[Group]) -> None:
        spread = Spread()
        self._groups = {
            group.uid: LengthPosterior(group.sampling.max_new_tokens, spread) for group in groups
        }

    @override
    def grown(self, result: ChunkResult) -> None:
        request = result.chunk.request
        if request.state is not RequestState.FINISHED:
            self._groups[request.group.uid].reached(request.index, request.generated)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self._groups[request.group.uid].ended(request.index, request.generated)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        self._groups[group.uid].close()

    @override
    def possible(self, request: Request, done: int) -> Sequence[int]:
        posterior = self._groups[request.group.uid]
        return [posterior.possible(done, chance) for chance in CHANCES]


class Account:
    """By how much a rollout is late because engines are closed, and until when it has to end.

    `slack`: the share of its time by which it may be late.
    """

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self.late_s = 0.0
        self._late_per_s = 0.0  # since the last decision
        self._decided_at = 0.0
        self.end_s = 0.0  # when the rollout would end if no engine had closed

    def within_s(self, now: float, all_s: float) -> float:
        """Returns the seconds in which the rollout has to end. `all_s`: those in which all engines
        would end it from now on."""
        self.late_s += self._late_per_s * (now - self._decided_at)
        self._decided_at = now
        self.end_s = now + all_s - self.late_s
        return self.end_s * (1 + self._slack) - now

    def decided(self, all_s: float, open_s: float) -> None:
        """Records that the open engines end it in `open_s`. In each second they do as much as all
        of them would in a part of it."""
        self._late_per_s = max(0.0, 1 - all_s / open_s)


class Progress(Observer):
    """What is known of the requests at any time, with tokens of chunks in flight estimated."""

    def __init__(self, groups: Sequence[Group], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.requests = {request.uid: request for group in groups for request in group.requests}
        self.complete = 0  # requests that have ended
        self.in_flight: dict[str, tuple[Chunk, float]] = {}  # by uid, with the time it was sent
        self.last_end: dict[str, float] = {}  # of a chunk, by engine id
        self._tokens_per_s: dict[str, float] = {}  # of the newest chunk, by engine id

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.in_flight[chunk.request.uid] = chunk, now

    @override
    def grown(self, result: ChunkResult) -> None:
        chunk, sent_at = self.in_flight.pop(result.chunk.request.uid)
        self.last_end[chunk.engine_id] = result.now
        if result.reply is not None and result.now > sent_at:
            rate = len(result.reply.ids) / (result.now - sent_at)
            self._tokens_per_s[chunk.engine_id] = rate

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        self.complete += 1
        del self.requests[request.uid]

    def done(self, request: Request) -> int:
        """Returns the response tokens that an unfinished request has by now."""
        if request.uid not in self.in_flight:
            return request.generated
        chunk, sent_at = self.in_flight[request.uid]
        more = (self._clock() - sent_at) * self._tokens_per_s.get(chunk.engine_id, 0.0)
        return request.generated + min(int(more), chunk.max_new_tokens - 1)


class Folding(CacheAware):
    """The placement of `seer`, until engines close; then the open ones run what is packed onto
    them. `cut`: receives the chunks in flight of requests that move."""

    def __init__(
        self,
        config: SimConfig,
        costs: Costs,
        progress: Progress,
        lengths: Lengths,
        slack: float,
        *,
        clock: Callable[[], float],
        cut: Callable[[Chunk], None],
    ) -> None:
        scheduling = config.scheduling
        super().__init__(costs, max_spread=scheduling.max_spread, gap=scheduling.fetch_gap_tokens)
        self._plan = Plan(config.engine)
        self._packer = Packer(config.engine)
        self._progress = progress
        self._lengths = lengths
        self._account = Account(slack)
        self._clock = clock
        self._cut = cut
        self._begins_after = BEGIN * len(progress.requests)
        self._due_at = 0.0
        self._engine_of: dict[str, str] = {}  # by uid
        self.closed_at: dict[str, float] = {}  # by engine id

    @override
    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        now, request = self._clock(), attempts.request
        if now >= self._due_at and self._progress.complete >= self._begins_after:
            self._fold(now, fleet)
        chosen = self._engine_of.get(request.uid)
        preferred = fleet.preferred(request)
        if chosen is None or not fleet[chosen].admits(request, total_len):
            if preferred is not None and not preferred.available and _waits(attempts):
                return Wait.FOR_STORE
            return super().choose(attempts, total_len, fleet)
        if preferred is None or preferred.engine_id == chosen:
            return Placed(fleet[chosen], Move.STAY)
        if _waits(attempts):
            return Wait.FOR_STORE
        return Placed(fleet[chosen], Move.FETCH if attempts.stored else Move.PREFILL)

    def _fold(self, now: float, fleet: EngineIndex) -> None:
        left = self._left()
        all_s = self._plan.ends_in(left, len(fleet))
        within_s = self._account.within_s(now, all_s)
        self._due_at = now + EVERY * self._account.end_s
        works = self._packer.works(left, list(self._progress.requests), within_s, len(fleet))
        opened = [slot for slot in fleet if slot.available]
        kept = self._packer.seconds(works, self._engine_of)
        packs, open_s = self._packer.packed(works, within_s, len(opened))
        if len(opened) - len(packs) >= max(1, AT_ONCE * len(opened)) or (
            self._engine_of and kept > within_s
        ):
            self._move(packs, opened, fleet, now)
        elif self._engine_of:
            open_s = kept
        self._account.decided(all_s, open_s if self._engine_of else all_s)

    def _move(
        self,
        packs: Sequence[Sequence[Work]],
        opened: list[EngineSlot],
        fleet: EngineIndex,
        now: float,
    ) -> None:
        """Gives each pack the engine that holds most of its KV, and closes the other engines."""
        engines = {slot.engine_id: slot for slot in opened}
        held: defaultdict[tuple[int, str], float] = defaultdict(float)
        for number, pack in enumerate(packs):
            for work in pack:
                request = self._progress.requests[work.uid]
                if work.uid in self._progress.in_flight:
                    at = self._progress.in_flight[work.uid][0].engine_id
                else:
                    at = request.engines[-1] if request.engines else ""
                held[number, at] += work.kv
        packed: dict[int, str] = {}
        for (number, engine_id), _ in sorted(held.items(), key=lambda item: -item[1]):
            if number not in packed and engine_id in engines:
                packed[number] = engine_id
                del engines[engine_id]
        for number in range(len(packs)):
            if number not in packed:
                packed[number], _ = engines.popitem()
        self._engine_of = {
            work.uid: packed[number] for number, pack in enumerate(packs) for work in pack
        }
        for slot in engines.values():
            slot.leaving, slot.available = True, False
            fleet.changed(slot)
            self.closed_at[slot.engine_id] = now
        for uid, (chunk, _) in self._progress.in_flight.items():
            if chunk.engine_id != self._engine_of[uid]:
                self._cut(chunk)

    def _left(self) -> Left:
        """Returns what the requests have left, by all lengths that are possible."""
        requests = list(self._progress.requests.values())
        done = [self._progress.done(request) for request in requests]
        possible = list(map(self._lengths.possible, requests, done))
        left = np.array(possible, dtype=np.int64).T - np.array(done, dtype=np.int64)
        kv = [request.prompt_len + tokens for request, tokens in zip(requests, done, strict=True)]
        return Left(np.maximum(left, 1), np.array(kv, dtype=np.int64))


def _waits(attempts: Attempts) -> bool:
    return attempts.may_wait and not attempts.stored
