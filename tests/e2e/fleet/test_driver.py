"""One driver on real engines: a pool, drafts, every chunk on another engine, and a different
sampling per group. The reference of all tests is a plain engine with undivided requests."""

import asyncio
import json
import random
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.admission.sampling import undivided
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.run import Run
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.describe import describe
from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.rollout.samples import encode_sample
from seer_sgl.types import ChunkResult, Group, Request, Sample
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, by_key
from tests.e2e.fleet.conftest import GROUPS, SEED, opened, prompts
from tests.e2e.rig import Rig
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.shared_engines


def groups_for(rollout: Rollout, run_id: str, shift: int = 0) -> list[Group]:
    """Returns the groups of `prompts()`, as in the first run of a Rollout; with `shift`, each group
    has the sampling of another one."""
    maker, limits = GroupMaker(run_id, SEED), rollout.driver.limits
    ready = rollout._reader(limits.longest_prompt).convert(prompts())
    made = []
    for prompt, other in zip(ready, ready[shift:] + ready[:shift], strict=True):
        assert other.sampling is not None
        limit = limits.response_limit(prompt, other.sampling.max_new_tokens)
        made.append(maker.group(prompt, other.sampling, limit, 0.0))
    return made


async def all_samples(run: Run) -> list[Sample]:
    samples = []
    async for group in run:
        assert group.failure is None
        samples += group.samples
    return samples


async def test_as_many_ways_to_sample_as_groups_and_none_changes_a_token(
    reference: Samples, rig: Rig, tmp_path: Path
) -> None:
    # Drafts from a history do not depend on the progress of siblings, which a busy machine delays.
    history = tmp_path / "history.jsonl"
    history.write_bytes(b"\n".join(map(encode_sample, reference.values())))
    drafting = rig.fleet(draft={"history": str(history)})
    async with opened(drafting, placement=AlwaysElsewhere(fetch=True)) as rollout:
        groups = [group async for group in rollout.run(prompts())]
        report = rollout.report()
    assert len({json.dumps(prompt["sampling"]) for prompt in prompts()}) == GROUPS == len(groups)
    parts = by_key([sample for group in groups for sample in group.samples])
    assert_identical(reference, parts)
    whole = [group for group in groups if any(undivided(group.sampling))]
    assert len(whole) == 15
    assert all(sample.chunks == 1 for group in whole for sample in group.samples)
    assert report["migrations"] == report["chunks"] - report["samples"] > 40
    assert report["cached_tokens"]["storage"] > 0
    assert accepted_drafts(report) > 20
    assert set(report["finish_reasons"]) == {"stop", "length"}
    kinds_of_end = {type(sample.matched) for sample in parts.values()}
    assert kinds_of_end == {int, str, type(None)}


class Aborter(Observer):
    """Aborts random requests at random times, and pauses the driver twice: after 1,500 tokens, and
    after the next tokens behind that pause."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.run: Run | None = None
        self.pauses = 0
        self.drawn: Counter[str] = Counter()
        self._driver = driver
        self._random = random.Random(seed)
        self._pausing: asyncio.Task[None] | None = None
        self._pause_at = 1500  # tokens

    @override
    def grown(self, result: ChunkResult) -> None:
        assert result.reply is not None
        assert self.run is not None
        self.drawn[result.chunk.request.uid] += len(result.reply.ids)
        if self._random.random() < 0.2:
            groups = list(self.run.unfinished.values())
            if groups:
                self.run.abort(self._random.choice(self._random.choice(groups).requests))
        paused = self._pausing is not None and not self._pausing.done()
        if self.pauses < 2 and not paused and self.drawn.total() > self._pause_at:
            self._pausing = asyncio.create_task(self._pause())

    async def _pause(self) -> None:
        await self._driver.pause()
        self.pauses += 1
        self._pause_at = self.drawn.total()
        self._driver.resume()


async def used_tokens(engines: Sequence[Any]) -> list[int]:
    return [(await engine.load()).used_tokens for engine in engines]


async def test_aborts_keep_a_beginning_of_the_undisturbed_runs_tokens(
    reference: Samples, rig: Rig
) -> None:
    async with opened(rig.fleet()) as rollout:
        driver, engines = rollout.driver, rollout.fleet.engines
        aborter = Aborter(driver, 3)
        run = aborter.run = driver.submit(groups_for(rollout, "aborts"), [aborter])
        samples = await all_samples(run)
        async with asyncio.timeout(DEADLINE_S):  # usually, the KV is free after one or two looks
            while any(await used_tokens(engines)):  # noqa: ASYNC110 (the engines have no event)
                await asyncio.sleep(0.5)
    assert aborter.pauses == 2
    found = by_key(samples)
    assert found.keys() == reference.keys()
    aborted = [sample for sample in samples if sample.finish_reason == "abort"]
    assert len(aborted) > 10
    assert sum(sample.response_length > 0 for sample in aborted) > 3
    for key, sample in found.items():
        expected = reference[key]
        whole = list(expected.response_ids)
        assert list(sample.response_ids) == whole[: sample.response_length], key
        assert list(sample.rollout_log_probs) == pytest.approx(
            list(expected.rollout_log_probs)[: sample.response_length], abs=1e-4
        )
        if sample.finish_reason != "abort":
            assert sample.response_length == expected.response_length
    kept = sum(sample.response_length for sample in samples)
    assert aborter.drawn.total() == kept, "every token is returned once"


class Moves(Observer):
    """Adds an engine and removes two while requests run."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()
        self.events: list[str] = []

    @override
    def grown(self, result: ChunkResult) -> None:
        assert result.reply is not None
        self.tokens[result.chunk.engine_id] += len(result.reply.ids)

    @override
    def joined(self, info: EngineInfo, now: float) -> None:
        self.events.append(f"joined {info.engine_id}")

    @override
    def left(self, engine_id: str, now: float) -> None:
        self.events.append(f"left {engine_id}")


async def test_a_fleet_of_two_becomes_three_and_then_one_and_no_token_changes(
    reference: Samples, rig: Rig
) -> None:
    moves = Moves()
    async with opened(rig.fleet()) as rollout, open_session() as session:
        driver = rollout.driver
        (info,) = await describe(session, "e2", rig.plain)  # an engine that works answers late
        run = driver.submit(groups_for(rollout, "moves"), [moves])
        rolled = asyncio.create_task(all_samples(run))
        await until(lambda: moves.tokens.total() >= 300)
        driver.add_engine(HttpEngine(info, session))
        await until(lambda: moves.tokens["e2"] >= 64)
        await driver.remove_engine("e0")
        await driver.remove_engine("e1")
        before = +moves.tokens
        samples = await rolled
    assert moves.events == ["joined e2", "left e0", "left e1"]
    assert (moves.tokens["e0"], moves.tokens["e1"]) == (before["e0"], before["e1"])
    assert len(samples) == len(reference)
    assert_identical(reference, by_key(samples))


class Streams(Observer):
    """Stores the streamed tokens of streaming requests."""

    def __init__(self) -> None:
        self.ids: dict[str, array[int]] = {}
        self.events = 0

    @override
    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        self.events += 1
        self.ids.setdefault(request.uid, array("i")).extend(ids)


async def test_two_callers_with_equal_ids_one_watches_and_one_leaves_half_way(
    reference: Samples, rig: Rig
) -> None:
    streams = Streams()
    async with opened(rig.fleet()) as rollout:
        driver = rollout.driver
        groups = groups_for(rollout, "stays")
        for group in groups[::2]:
            for request in group.requests:
                request.streaming = True
        stays = driver.submit(groups, [streams])
        leaves = driver.submit(groups_for(rollout, "leaves", shift=1))
        samples = asyncio.create_task(all_samples(stays))
        for _ in range(GROUPS // 2):
            await anext(leaves)
        leaves.close()
        found = by_key(await samples)
    assert_identical(reference, found)
    watched = {request.uid: request for group in groups[::2] for request in group.requests}
    assert streams.ids.keys() == watched.keys()
    for uid, ids in streams.ids.items():
        assert ids == watched[uid].response_ids
    requests = watched.values()
    chunks = sum(found[request.group.group_id, request.index].chunks for request in requests)
    assert streams.events > chunks, "the tokens of a chunk arrive in several parts"
