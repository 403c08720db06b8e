"""Faults on real SGLang servers: a request that cannot be continued restarts, a refusal is
recognised as one, and an engine's request count is complete."""

import asyncio
import re
from collections import Counter
from typing import Any

import aiohttp
import pytest
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.engine.server_calls import REFUSALS
from seer_sgl.engine.wire import refusal
from seer_sgl.engine_types import EngineLoad
from seer_sgl.timing import Timing
from seer_sgl.types import Chunk, ChunkResult
from tests.e2e.compare import Samples, assert_identical, roll, rolled
from tests.e2e.conftest import external
from tests.e2e.draws import continue_all, control, running
from tests.helpers import Returns
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.shared_engines

# In this model's text, a space and a word are one token. A continued response would restart its
# digits in the middle.
DIGITS = "( [0-9]){400} ok"
SAMPLES = 8


class Sent(Returns):
    """Sets `all` when all requests are in flight, and stores the errors of failed chunks."""

    def __init__(self) -> None:
        self.all = asyncio.Event()
        self.errors: list[str] = []
        self.on: Counter[str] = Counter()  # sent chunks by engine

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.on[chunk.engine_id] += 1
        if self.on.total() == SAMPLES:
            self.all.set()

    @override
    def returned(self, result: ChunkResult) -> None:
        if result.error is not None:
            self.errors.append(str(result.error))


async def abort_all(urls: list[str], sent: Sent) -> None:
    """Aborts all requests on every server, once all of them run. A server that waits for another
    one is paused, so that none of its requests ends before."""
    await sent.all.wait()
    async with aiohttp.ClientSession() as session:

        async def pause(engine_id: str, url: str) -> None:
            while await running(session, url) < sent.on[engine_id]:
                pass
            await control(session, url, "/pause_generation", mode="in_place")

        try:
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as pausing:
                for engine_id, url in zip(("e0", "e1"), urls, strict=True):
                    pausing.create_task(pause(engine_id, url))
            for url in urls:
                await control(session, url, "/abort_request", abort_all=True)
        finally:
            await continue_all(session, urls)


async def test_grammars_aborted_in_the_middle_give_the_responses_of_an_undisturbed_run(
    engine_urls: list[str],
) -> None:
    def config() -> dict[str, Any]:
        return external(
            engine_urls,
            sampling={"regex": DIGITS, "max_response_len": 500},
            rollout={"n_samples_per_prompt": SAMPLES},
        )

    undisturbed, plain = await roll(config(), 1)
    sent = Sent()
    async with asyncio.TaskGroup() as tasks:
        rolled = tasks.create_task(roll(config(), 1, [sent]))
        tasks.create_task(abort_all(engine_urls, sent))
    aborted: Samples
    aborted, report = rolled.result()
    assert plain["lost_chunks"] == 0
    assert report["lost_chunks"] == len(sent.errors) == SAMPLES
    kept = [re.search(r"\(abort\) after (\d+) of 500 tokens", line) for line in sent.errors]
    assert all(found is not None and 0 < int(found[1]) < 400 for found in kept), sent.errors
    assert_identical(undisturbed, aborted)
    for sample in aborted.values():
        assert re.fullmatch(DIGITS, f" {(sample.text or '').strip()}"), sample.text
        assert (sample.chunks, sample.response_length) == (1, 402)
    assert report["response_tokens"] == sum(e["response_tokens"] for e in report["engines"])


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [5] * 100_000, "sampling_params": {"max_new_tokens": 4}},
        {"input_ids": [5], "sampling_params": {"temperature": -1.0}},
        {"input_ids": [5], "sampling_params": {"max_new_tokens": -4}},
        {"input_ids": [5], "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 4}},
        {"sampling_params": {}},
        {"input_ids": {"a": "b"}},
    ],
    ids=["too long", "temperature", "max_new_tokens", "min_new_tokens", "no input", "type"],
)
async def test_a_request_that_sglang_refuses_is_known_by_its_answer(
    body: dict[str, Any], engine_urls: list[str]
) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{engine_urls[0]}/generate", json=body) as reply:
            assert reply.status in REFUSALS
            assert refusal(await reply.read()) is not None
        async with session.post(f"{engine_urls[0]}/generated", json=body) as reply:
            assert reply.status == 404
            assert refusal(await reply.read()) is None


class Counts(Returns):
    """Pairs each count of an engine's requests with the chunks it has in flight."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[int | None, int]] = Counter()
        self._inflight: Counter[str] = Counter()

    @property
    def equal(self) -> int:
        """The counts of working engines that were equal."""
        pairs = self.seen.items()
        return sum(n for (requests, sent), n in pairs if requests == sent > 0)

    @property
    def working(self) -> int:
        """The counts of working engines."""
        return sum(n for (_, sent), n in self.seen.items() if sent > 0)

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self._inflight[chunk.engine_id] += 1

    @override
    def returned(self, result: ChunkResult) -> None:
        self._inflight[result.chunk.engine_id] -= 1

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        self.seen[load.requests, self._inflight[engine_id]] += 1


async def test_an_engine_counts_all_requests_that_it_has_and_none_is_taken_back(
    engine_urls: list[str],
) -> None:
    counts = Counts()
    config = external(engine_urls, sampling={"max_response_len": 600, "ignore_eos": True})
    async with Rollout(config, timing=Timing(poll_s=0.05)) as rollout:
        for _ in range(5):  # a busy machine polls less often
            samples, report = await rolled(rollout, 2, [counts])
            assert len(samples) == 16
            assert report["lost_chunks"] == 0
            if counts.equal >= 10:
                break
    assert all(requests is not None for requests, _ in counts.seen)
    assert counts.equal >= 10, counts.seen
    # The others were reported while a reply or a new chunk was under way.
    assert counts.equal >= 0.1 * counts.working, counts.seen
