"""`/metrics`: each figure after events that a test knows."""

import asyncio
import itertools
from collections import deque
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.server.prefixes import Prefixes
from tests.fake_sglang import FakeSGLang
from tests.support.bodies import events
from tests.support.metrics import LIMIT, body, counters
from tests.support.waiting import until

from .helpers import CHUNK, served
from .rollout_client import prompts, rollout
from .scrape import scraped

PROMPT = 3  # tokens
VERIFIED = 4


async def test_tokens_chunks_and_requests_are_counted_once() -> None:
    fakes = [FakeSGLang(longest=1000), FakeSGLang(longest=1000)]
    async with served(*fakes) as it:
        await asyncio.gather(*(it.generate(**body(i)) for i in range(6)))
        await events(it, **body(9))
        now = await scraped(it)
    chunks = 7 * LIMIT / CHUNK
    assert now("seer_generated_tokens_total") == 7 * LIMIT
    assert now("seer_chunks_total") == chunks
    for name, value in (("generated_tokens", 7 * LIMIT), ("chunks", chunks)):
        assert now.sum(f"seer_engine_{name}_total") == value
    assert now("seer_requests_ended_total", reason="length") == 7
    assert now.sum("seer_requests_ended_total") == 7
    assert now("seer_requests", state="pending") == now("seer_requests", state="running") == 0
    assert now("seer_request_seconds_count", kind="single") == 7
    assert now("seer_time_to_first_token_seconds_count") == 1
    assert now("seer_oldest_request_seconds") == 0
    assert now("seer_groups_in_progress") == 0
    assert now.sum("seer_chunk_errors_total") == 0
    assert now("seer_http_requests_total", route="/generate", method="POST", status="200") == 7
    assert sum(len(fake.seen) for fake in fakes) == chunks


class Forgetful(FakeSGLang):
    """Has lost half of each input's KV, preempts every request once, and drafts in continuations
    only: VERIFIED steps each."""

    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        reply, tokens = super()._reply(call, fault), len(call["input_ids"])
        reply["meta_info"] |= {"cached_tokens": tokens // 2, "num_retractions": 1}
        reply["meta_info"] |= {"spec_verify_ct": VERIFIED} if tokens > PROMPT else {}
        return reply


class Halting(Forgetful):
    """Never continues the response to one prompt; the others wait until it has its first chunk."""

    @override
    async def _answer(
        self, http: web.Request, call: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        ids = call["input_ids"]
        halts = ids[:PROMPT] == prompts(2)[1]["prompt_ids"]
        if len(ids) > PROMPT and halts:
            fault = "stall"
        elif len(ids) > PROMPT:
            await self.stalled.wait()
        return await super()._answer(http, call, fault)


async def test_what_a_turn_is_given_was_not_computed_before() -> None:
    async with served(Forgetful(longest=1000)) as it:
        first = await it.generate(**body(1, group_id="g"))
        ids = [*body(1)["input_ids"], *first["output_ids"], 5]
        params = body(2)["sampling_params"] | {"max_new_tokens": CHUNK}
        turn = await it.generate(input_ids=ids, sampling_params=params, group_id="g")
    found = [reply["meta_info"]["seer"] for reply in (first, turn)]
    assert [(each["group"], each["chunks"]) for each in found] == [("g", LIMIT // CHUNK), ("g", 1)]
    assert turn["meta_info"]["cached_tokens"] == len(ids) // 2
    assert (found[1]["reused_tokens"], found[1]["recomputed_tokens"]) == (0, 0)


async def test_the_metas_of_all_replies_add_up_to_the_metrics_and_to_the_report() -> None:
    async with served(Forgetful(longest=1000), Forgetful(longest=1000)) as it:
        driver = it.service.driver
        record = Recorder("r", 1, driver.engines, [], started_at=0.0)
        driver.observe(record)
        replies = await asyncio.gather(*(it.generate(**body(i)) for i in range(6)))
        now = await scraped(it)
    metas = [reply["meta_info"] for reply in replies]
    inputs = [PROMPT + chunk * CHUNK for chunk in range(1, LIMIT // CHUNK)]  # of the continuations
    made = report(record)
    recomputed = 6 * sum(tokens - tokens // 2 - 1 for tokens in inputs)
    assert sum(meta["seer"]["recomputed_tokens"] for meta in metas) == recomputed
    assert now("seer_recomputed_tokens_total") == made["recomputed_tokens"] == recomputed
    assert sum(meta["seer"]["reused_tokens"] for meta in metas) == 6 * sum(n // 2 for n in inputs)
    for figure, key, mine in (
        ("chunks", "chunks", sum(meta["seer"]["chunks"] for meta in metas)),
        ("generated_tokens", "response_tokens", sum(meta["completion_tokens"] for meta in metas)),
        ("retractions", "retractions", sum(meta["num_retractions"] for meta in metas)),
    ):
        assert now(f"seer_{figure}_total") == made[key] == mine > 0
    verified = sum(meta["spec_verify_ct"] for meta in metas)
    assert now("seer_verify_steps_total") == verified == VERIFIED * len(inputs) * 6
    assert now("seer_speculated_tokens_total") == CHUNK * len(inputs) * 6
    for accepted in (made["accept_length"], *(meta["spec_accept_length"] for meta in metas)):
        assert accepted == CHUNK / VERIFIED
    moved = sum(
        before != after
        for meta in metas
        for before, after in itertools.pairwise(meta["seer"]["engines"])
    )
    assert now("seer_migrations_total") == made["migrations"] == moved


async def test_the_sample_and_the_progress_of_a_rollout_agree_with_its_report_and_the_metrics() -> (
    None
):
    params = {"max_new_tokens": LIMIT}
    async with served(Halting(longest=1 << 16), sampling=params) as it:
        async with rollout(it, prompts(2, n=1), target_groups=1) as stream:
            _, line, end = await stream.rest()
            progress = await stream.progress()
        now = await scraped(it)
    (sample,), made = line["samples"], progress["report"]
    assert (sample["group_id"], sample["response_length"], end["state"]) == ("g0", LIMIT, "target")
    assert end["samples"] == progress["samples"]["finished"] == made["samples"] == 1
    assert made["response_tokens"] == LIMIT, "of finished samples"
    (engine,) = made["engines"]
    for generated in (end["generated_tokens"], progress["generated_tokens"]):
        assert generated == engine["response_tokens"] == now("seer_generated_tokens_total")
        assert generated == LIMIT + CHUNK, "with those of the aborted request"
    assert sample["accept_length"] == made["accept_length"] == CHUNK / VERIFIED


async def test_pending_and_running_requests_are_the_unfinished_ones() -> None:
    fake = FakeSGLang(longest=1000, max_running_requests=2, faults=deque(["stall"] * 2))
    async with served(fake) as it:
        calls = [asyncio.create_task(it.generate(**body(i))) for i in range(5)]
        await asyncio.wait_for(fake.stalled.wait(), 10)
        now = await scraped(it)
        assert now("seer_requests", state="running") == 2
        assert now("seer_requests", state="pending") == 3
        assert now("seer_engine_inflight_chunks", engine="e0") == 2
        assert now("seer_engine_kv_reserved_tokens", engine="e0") > 0
        assert now("seer_oldest_request_seconds") > 0
        assert now("seer_groups_in_progress") == now("seer_open_groups") == 1
        fake.wake_stalled()
        await asyncio.gather(*calls)
        assert (await scraped(it)).sum("seer_requests") == 0


@pytest.mark.process
async def test_ends_are_counted_by_reason_and_lost_chunks_by_kind() -> None:
    fake = FakeSGLang(longest=1000, faults=deque(["503", "reset", "ok", "garbage"]))
    async with served(fake) as it:
        await it.generate(**body(1))
        fake.rejects = lambda _: True
        status, _ = await it.post("/generate", **body(2, group_id="refused"))
        assert status == 400
        fake.rejects = None
        fake.delay_s = 0.05
        call = asyncio.create_task(it.generate(**body(3, rid="mine")))
        steps = fake.steps
        await until(lambda: fake.steps > steps + 1)
        await it.service.abort(Prefixes(["mine"]))
        await call
        await it.generate(**body(4, top_logprobs_num=1))
        now = await scraped(it)
    for reason, count in (("length", 1), ("refused", 1), ("abort", 1), ("passthrough", 1)):
        assert now("seer_requests_ended_total", reason=reason) == count, reason
    assert now.sum("seer_requests_ended_total") == 4
    assert now("seer_request_seconds_count", kind="single") == 2, "of the two that were served"
    # A connection that breaks is replaced once, so the reset costs no chunk.
    assert now("seer_chunk_errors_total", kind="unavailable") == 1
    assert now("seer_chunk_errors_total", kind="bad_reply") == 1
    assert now("seer_chunk_errors_total", kind="rejected") >= 1
    assert now("seer_passthrough_requests_total", reason="top_logprobs_num") == 1
    assert now.sum("seer_requests") == 0


async def test_clients_cannot_choose_the_number_of_series() -> None:
    async with served(FakeSGLang()) as it:
        before = (await scraped(it)).samples
        for number in range(20):
            for method in ("GET", "PROPFIND", "MKCOL"):
                assert (await it.ask(method, f"/no/such/{number}"))[0] == 404
            unknown = body(number, **{f"no such field {number}": 1})
            assert (await it.post("/generate", **unknown))[0] == 400
        after = (await scraped(it)).samples
    new = {name for name, _ in set(after) - set(before)}
    assert new <= {"seer_http_requests_total", "seer_http_requests_created"}
    assert len(set(after) - set(before)) <= 2 * 4


async def test_an_engine_that_leaves_takes_its_series_with_it() -> None:
    async with served(FakeSGLang(), FakeSGLang()) as it:
        await it.generate(**body(1))
        total = (await scraped(it))("seer_generated_tokens_total")
        await it.service.driver.remove_engine("e1")
        now = await scraped(it)
        engines = {dict(labels).get("engine") for _, labels in now.samples}
        assert engines == {None, "e0"}
        assert now("seer_generated_tokens_total") == total


async def test_the_state_and_the_weights_of_each_engine_are_shown() -> None:
    fakes = [FakeSGLang(), FakeSGLang(weight_version="v1")]
    async with served(*fakes) as it:
        it.service.driver.mark_stale("e1", "it missed an update")
        fakes[0].weight_version = "v2"
        await it.generate(**body(1))
        engines = it.service.driver
        await until(lambda: engines.engines[0].weight_version == "v2")
        await it.service.driver.pause()
        now = await scraped(it)
        it.service.driver.resume()
    info = {"sglang_version": "0.5.21", "plugin": ""}
    assert now("seer_engine_info", engine="e0", weight_version="v2", **info) == 1
    assert now("seer_engine_info", engine="e1", weight_version="v1", **info) == 1
    assert now("seer_engine_available", engine="e1") == 0
    assert now("seer_engine_stale", engine="e1") == 1
    assert now("seer_engine_stale", engine="e0") == 0
    assert now("seer_paused") == 1


@pytest.mark.parametrize(("away", "drafted"), [(False, 60), (True, 20)])
async def test_the_drafting_counters_come_from_the_engines_that_answer(
    away: bool, drafted: int
) -> None:
    fakes = [FakeSGLang(plugin=counters(10)), FakeSGLang(plugin=counters(20))]
    async with served(*fakes) as it:
        fakes[1].away = away
        now = await scraped(it)
    assert now.sum("seer_draft_drafted_tokens_total") == drafted
    assert now.sum("seer_draft_accepted_tokens_total") == drafted / 2
    assert now("seer_draft_hub_lag_seconds_count") == 0
    assert now("seer_engine_kv_capacity_tokens", engine="e1") > 0


async def test_a_rollout_has_a_tail_and_is_counted_apart_from_single_requests() -> None:
    fake = FakeSGLang(longest=1000, max_running_requests=4, faults=deque(["stall"]))
    async with served(fake, sampling={"max_new_tokens": LIMIT}) as it:
        async with rollout(it, prompts(10), rollout_id="mine") as stream:
            await asyncio.wait_for(fake.stalled.wait(), 10)
            assert (await scraped(it))("seer_rollouts") == 1
            (shown,) = (await it.ask("GET", "/live"))[1]["rollouts"]
            assert (shown["name"], shown["requests"]) == ("mine", 20)
            fake.wake_stalled()
            await stream.rest()
        await until(lambda: not it.service.rollouts.in_progress)
        now = await scraped(it)
    assert now("seer_rollouts") == now("seer_tail_seconds") == 0
    assert now("seer_rollout_tail_seconds_count") == 1
    assert now("seer_request_seconds_count", kind="rollout") == 20
    assert now("seer_request_seconds_count", kind="single") == 0
