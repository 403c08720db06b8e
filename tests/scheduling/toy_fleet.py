"""A minimal fleet, to measure the effect of the dispatch order on the time of a rollout.

An engine with n chunks takes `1 + n / WIDTH` units of time per token, for all chunks at once.
Prefill and moves are free. This is enough to compare policies, not to predict times.
"""

import heapq
import itertools
import random
from array import array
from typing import NamedTuple

from seer_sgl.scheduling.engine_index import EngineSlot
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import CacheAware
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import make_strategy
from seer_sgl.types import Chunk, ChunkResult, FinishReason, Group, Prompt
from tests.helpers import make_group, make_reply

WIDTH = 16
PROMPT_LEN = 4
LONGEST = 1000  # tokens of a response


class Outcome(NamedTuple):
    """The result of a rollout. `tail`: the time after 90 % of the requests have finished."""

    makespan: float
    tail: float


class ToyEngine:
    def __init__(self) -> None:
        self.tokens = 0.0  # tokens that each chunk in flight has received since the start
        self.at = 0.0  # the time of `tokens`
        self.running: list[tuple[float, int, Chunk]] = []  # by the value of `tokens` at their end

    def advance(self, now: float) -> None:
        self.tokens += (now - self.at) / self.step
        self.at = now

    @property
    def step(self) -> float:
        return 1 + len(self.running) / WIDTH

    @property
    def next_end(self) -> float:
        return self.at + (self.running[0][0] - self.tokens) * self.step


def heavy_tailed(groups: int, n: int, seed: int) -> list[list[int]]:
    """Returns lengths of n samples per prompt; some prompts are ten times as long as others."""
    dice = random.Random(seed)
    medians = [dice.lognormvariate(0, 1.0) * LONGEST / 12 for _ in range(groups)]
    return [
        [max(1, min(LONGEST, int(median * dice.lognormvariate(0, 0.35)))) for _ in range(n)]
        for median in medians
    ]


def roll(
    policy: str,
    lengths: list[list[int]],
    *,
    engines: int,
    max_inflight: int,
    capacity: int = 1 << 30,
    chunk_tokens: int,
    known: KnownLengths | None,
) -> Outcome:
    """Rolls out groups of these response lengths."""
    strategy = make_strategy(policy, CacheAware(), known)
    scheduler = Scheduler(
        chunk_tokens, make_policy=strategy.make_policy, placement=strategy.placement
    )
    toys = {f"e{i}": ToyEngine() for i in range(engines)}
    for engine_id in toys:
        scheduler.add_engine(EngineSlot(engine_id, KVLedger(capacity), max_inflight))
    groups = toy_groups(lengths)
    for group in groups:
        scheduler.submit(group)
    now, turns = 0.0, itertools.count()
    ends: list[float] = []
    while True:
        while (chunk := scheduler.next_assignment(now)) is not None:
            toy = toys[chunk.engine_id]
            toy.advance(now)
            tokens = min(_left(chunk), chunk.max_new_tokens)
            heapq.heappush(toy.running, (toy.tokens + tokens, next(turns), chunk))
        busy = [toy for toy in toys.values() if toy.running]
        if not busy:
            break
        toy = min(busy, key=lambda toy: toy.next_end)
        now = toy.next_end
        toy.advance(now)
        _, _, chunk = heapq.heappop(toy.running)
        left = _left(chunk)
        finish: FinishReason = "stop" if left <= chunk.max_new_tokens else "length"
        reply = make_reply(min(left, chunk.max_new_tokens), finish)
        scheduler.complete(ChunkResult(chunk=chunk, now=now, reply=reply))
        if finish == "stop":
            ends.append(now)
    return Outcome(now, now - ends[int(0.9 * len(ends))])


def toy_groups(lengths: list[list[int]]) -> list[Group]:
    """Returns groups whose prompts have the lengths of their responses as metadata."""
    groups = []
    for number, group_lengths in enumerate(lengths):
        group = make_group(f"g{number}", n=len(group_lengths), max_response_len=LONGEST)
        group.prompt = Prompt(
            prompt_id=group.group_id,
            prompt_ids=array("i", [number] * PROMPT_LEN),
            n=len(group_lengths),
            metadata=group_lengths,
        )
        groups.append(group)
    return groups


def known_from(lengths: list[list[int]]) -> KnownLengths:
    """Returns the lengths of an earlier rollout of the same prompts."""
    known = KnownLengths()
    for group, group_lengths in zip(toy_groups(lengths), lengths, strict=True):
        for index, length in enumerate(group_lengths):
            known.add(length, prompt_ids=group.prompt.prompt_ids, group_id="", index=index)
    return known


def _left(chunk: Chunk) -> int:
    request = chunk.request
    lengths: list[int] = request.group.prompt.metadata
    return lengths[request.index] - request.generated
