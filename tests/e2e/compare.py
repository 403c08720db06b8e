"""Two rollouts of the same prompts, compared token for token."""

from collections.abc import Sequence
from typing import Any

from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.types import Chunk, ChunkResult, Move, Request, Sample
from tests.e2e.conftest import HELD_OUT
from tests.helpers import Returns

LOGPROB_TOLERANCE = 1e-4
Samples = dict[tuple[str, int], Sample]


class Migrations(Returns):
    """How many input tokens of each chunk that moved were computed again, and why."""

    def __init__(self) -> None:
        self.recomputed: list[int] = []
        self.recomputed_after_fetch: list[int] = []  # of those whose KV was said to be there
        # rids of chunks that moved without KV although no chunk of their request had lost any.
        self.left_kv_behind: list[str] = []
        self._incomplete: set[str] = set()  # uids of requests some of whose KV is not in the pool

    def sent(self, chunk: Chunk, now: float) -> None:
        """A chunk went to its engine."""
        without_kv = chunk.migrated and chunk.move is not Move.FETCH
        if without_kv and chunk.request.uid not in self._incomplete:
            self.left_kv_behind.append(chunk.rid)

    def stored(self, request: Request, whole: bool, now: float) -> None:
        """An engine reported how much of the newest chunk's KV has reached the pool."""
        if not whole:
            self._incomplete.add(request.uid)

    def returned(self, result: ChunkResult) -> None:
        """A chunk came back."""
        if result.reply is None:
            self._incomplete.add(result.chunk.request.uid)
        elif result.chunk.migrated:
            again = result.chunk.input_len - result.reply.cached
            self.recomputed.append(again)
            if result.chunk.move is Move.FETCH:
                self.recomputed_after_fetch.append(again)


async def roll(
    config: dict[str, Any], prompts: int, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Samples, Any]:
    """All samples of the first held-out prompts, and the report."""
    config["rollout"]["max_prompts"] = prompts
    async with Rollout(config, **options) as rollout:
        ready = rollout.read_prompts(HELD_OUT)
        groups = [group async for group in rollout.run(ready, observers)]
    return by_key([sample for group in groups for sample in group.samples]), rollout.report()


def accepted_drafts(report: Any) -> int:
    """Tokens that came from drafts. How many is the policy's choice, by the times it measures."""
    return sum(report["drafting"]["accepted_by_position"])


def by_key(samples: Sequence[Sample]) -> Samples:
    """Samples by group and index."""
    return {(sample.group_id, sample.index): sample for sample in samples}


def assert_identical(whole: Samples, parts: Samples) -> None:
    """Same tokens, same end, same text; logprobs within the tolerance."""
    assert whole.keys() == parts.keys()
    worst = 0.0
    for key, undivided in whole.items():
        divided = parts[key]
        assert list(divided.response_ids) == list(undivided.response_ids), key
        assert divided.finish_reason == undivided.finish_reason
        assert divided.matched == undivided.matched
        assert divided.text == undivided.text
        assert len(divided.rollout_log_probs) == divided.response_length
        pairs = zip(divided.rollout_log_probs, undivided.rollout_log_probs, strict=True)
        worst = max(worst, *(abs(a - b) for a, b in pairs))
    assert worst < LOGPROB_TOLERANCE
