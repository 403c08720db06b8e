"""Two rollouts of the same prompts, compared token for token."""

from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from typing_extensions import override

from seer_sgl import Prompt, Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.timing import DEFAULT
from seer_sgl.types import Chunk, ChunkResult, Group, Move, Request, Sample
from tests.e2e.conftest import HELD_OUT
from tests.helpers import Returns

LOGPROB_TOLERANCE = 1e-4
Samples = dict[tuple[str, int], Sample]


class Fetch(NamedTuple):
    """Input tokens of a chunk with stored KV: computed again, and read from the pool."""

    recomputed: int
    read: int


class Migrations(Returns):
    """The recomputed input tokens of each chunk that moved, and the reasons."""

    def __init__(self) -> None:
        self.recomputed: list[int] = []
        self.fetches = 0  # chunks that moved, and for which an engine read KV from the pool
        self.recomputed_after_fetch: list[int] = []  # of chunks with stored KV
        # Those of them that took less time than an engine has to read KV, so that no read of theirs
        # was ended early, and whose requests never lacked KV.
        self.in_time: list[Fetch] = []
        # rids of chunks that moved without KV although no chunk of their request had lost any.
        self.left_kv_behind: list[str] = []
        self._incomplete: set[str] = set()  # uids of requests with KV missing from the pool
        self._sent_at: dict[str, float] = {}  # by rid

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self._sent_at[chunk.rid] = now
        without_kv = chunk.migrated and chunk.move is not Move.FETCH
        if without_kv and chunk.request.uid not in self._incomplete:
            self.left_kv_behind.append(chunk.rid)

    @override
    def stored(self, request: Request, complete: bool, after_s: float, now: float) -> None:
        if not complete:
            self._incomplete.add(request.uid)

    @override
    def returned(self, result: ChunkResult) -> None:
        chunk, reply = result.chunk, result.reply
        took_s = result.now - self._sent_at.pop(chunk.rid)
        if reply is None:
            self._incomplete.add(chunk.request.uid)
        elif chunk.migrated:
            again = chunk.input_len - reply.cached
            self.recomputed.append(again)
            self.fetches += reply.cached_storage > 0
            if chunk.move is Move.FETCH:
                self.recomputed_after_fetch.append(again)
                whole = chunk.reads and chunk.request.uid not in self._incomplete
                if whole and took_s < DEFAULT.pool_read_s:
                    self.in_time.append(Fetch(again, reply.cached_storage))


async def roll(
    config: dict[str, Any], prompts: int, observers: Sequence[Observer] = (), **options: Any
) -> tuple[Samples, Any]:
    """Returns all samples of the first held-out prompts, and the report."""
    config["rollout"]["max_prompts"] = prompts
    async with Rollout(config, **options) as rollout:
        return await rolled(rollout, prompts, observers)


async def rolled(
    rollout: Rollout, prompts: int, observers: Sequence[Observer] = ()
) -> tuple[Samples, Any]:
    """Returns all samples of the first held-out prompts on an open rollout, and the report."""
    ready = rollout.read_prompts(HELD_OUT)[:prompts]
    return await collected(rollout.run(ready, observers)), rollout.report()


async def roll_singly(
    rollout: Rollout,
    prompts: Sequence[Prompt],
    observers: Sequence[Observer],
    enough: Callable[[], bool],
) -> None:
    """Rolls out one sample of each prompt, one after the other, until there are enough. So the
    engines have one request at a time. Raises AssertionError if all prompts are too few."""
    left = iter(prompts)
    while not enough():
        prompt = next(left, None)
        assert prompt is not None, f"{len(prompts)} requests were too few"
        await collected(rollout.run([msgspec.structs.replace(prompt, n=1)], observers))


async def collected(run: AsyncIterable[Group]) -> Samples:
    """Returns the samples of a run, once it has ended."""
    return by_key([sample async for group in run for sample in group.samples])


def accepted_drafts(report: Any) -> int:
    """Returns the accepted draft tokens. Their number depends on the times that the policy
    measures."""
    return sum(report["drafting"]["accepted_by_position"])


def has_accepted_draft(sample: Sample) -> bool:
    """Returns whether a draft was surely accepted. The first token of each chunk comes from its
    prefill: without an accepted draft, the tokens per verification are above 1 for that alone."""
    behind = sample.response_length - sample.chunks  # the most verifications that it can have
    return (sample.accept_length or 0.0) * behind > sample.response_length + 0.5  # of rounding


def saved_steps(meta: dict[str, Any]) -> int:
    """Returns the steps that accepted drafts saved a response of a rollout server, at least. The
    first token of each chunk comes from its prefill, and the others from verifications."""
    chunks: int = meta["seer"]["chunks"]
    tokens: int = meta["completion_tokens"]
    return tokens - chunks - int(meta.get("spec_verify_ct", 0))


def by_key(samples: Sequence[Sample]) -> Samples:
    """Returns the samples by group and index."""
    return {(sample.group_id, sample.index): sample for sample in samples}


def assert_identical(whole: Samples, parts: Samples) -> None:
    """Asserts equal tokens, ends and texts, and logprobs within the tolerance."""
    assert whole.keys() == parts.keys()
    found = {key: difference(whole[key], parts[key]) for key in whole}
    assert not any(found.values()), found


def difference(whole: Sample, sample: Sample) -> str | None:
    """Returns how a sample differs from the other one; None if it does not."""
    if list(whole.response_ids) != list(sample.response_ids):
        pairs = zip(whole.response_ids, sample.response_ids, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        return f"other tokens from {same} on, chunks on {list(sample.engines)}"
    expected, ended = ((s.finish_reason, s.matched, s.text) for s in (whole, sample))
    if ended != expected:
        return f"it ended by {ended}, not {expected}"
    logprobs, others = sample.rollout_log_probs, whole.rollout_log_probs
    if not len(logprobs) == len(others) == sample.response_length:
        return f"{len(logprobs)} log probabilities"
    worst = max((abs(a - b) for a, b in zip(logprobs, others, strict=True)), default=0.0)
    return None if worst < LOGPROB_TOLERANCE else f"log probabilities differ by {worst:g}"
