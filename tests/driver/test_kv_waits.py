"""Chunks that wait for KV in an engine's queue: when it is too long, and where they move."""

import asyncio
import logging
from collections import deque
from typing import Any

import msgspec
import pytest

from seer_sgl.driver.kv_waits import PREFILL_TOK_S, KvWaits
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Chunk, Move
from tests.fake_sglang import FakeSGLang, reads_none
from tests.helpers import make_group
from tests.support.fleets import all_groups, check, rolling
from tests.support.infos import chunk_on
from tests.support.waiting import until

PLUGIN = {"version": "1", "missing": []}


def chunks(count: int, input_len: int = 10) -> list[Chunk]:
    requests = make_group(n=count, prompt_len=input_len).requests
    return [chunk_on("e0", request, move=Move.FETCH) for request in requests]


def test_a_wait_is_too_long_once_all_inputs_could_have_been_prefilled() -> None:
    waits = KvWaits()
    assert waits.bound_s(chunks(4, input_len=5_000), prefill_tok_s=1_000.0) == 20.0
    assert waits.bound_s(chunks(1, input_len=5_000), prefill_tok_s=100_000.0) == DEFAULT.kv_least_s
    assert waits.bound_s([], prefill_tok_s=100.0) == DEFAULT.kv_least_s
    assert waits.bound_s(chunks(2, input_len=10_000), prefill_tok_s=0.0) == 20_000 / PREFILL_TOK_S


def test_the_wait_of_a_chunk_begins_when_it_is_first_seen_and_ends_with_its_read() -> None:
    waits, (first, second) = KvWaits(), chunks(2)
    assert waits.overdue(0.0, [first], 5.0) == []
    assert waits.overdue(3.0, [first, second], 5.0) == []
    assert waits.overdue(5.0, [first, second], 5.0) == [first]
    assert waits.overdue(7.9, [second], 5.0) == []
    assert waits.overdue(7.95, [first, second], 5.0) == [], "the first one waits anew"
    assert waits.overdue(8.0, [first, second], 5.0) == [second]


def test_chunks_that_come_and_go_are_not_too_late_although_one_always_waits() -> None:
    waits = KvWaits()
    for poll, chunk in enumerate(chunks(100)):
        assert waits.overdue(0.5 * poll, [chunk], DEFAULT.kv_least_s) == []
        assert waits.notice(0.5 * poll) == 0


def test_a_long_wait_is_noticed_once_until_nothing_waits() -> None:
    waits, (first, second) = KvWaits(), chunks(2)
    noticed = []
    for now, waiting in (
        (0.0, [first]),
        (DEFAULT.kv_notice_s, [first, second]),
        (DEFAULT.kv_notice_s + 1, [first, second]),
        (DEFAULT.kv_notice_s + 2, [second]),
        (10.0, []),
        (11.0, [first]),
        (11.0 + DEFAULT.kv_notice_s, [first]),
    ):
        waits.overdue(now, waiting, 100.0)
        noticed.append(waits.notice(now))
    assert noticed == [0, 2, 0, 0, 0, 0, 1]


def test_an_engine_reads_again_after_pauses_that_double() -> None:
    waits, (chunk,) = KvWaits(), chunks(1)
    now, pauses = 0.0, []
    assert not waits.resumes(1e9)
    for _ in range(8):
        waits.overdue(now, [], DEFAULT.kv_least_s)
        waits.overdue(now, [chunk], DEFAULT.kv_least_s)
        now += DEFAULT.kv_least_s
        assert waits.overdue(now, [chunk], DEFAULT.kv_least_s) == [chunk]
        began = now
        while not waits.resumes(now):
            now += 0.5
        pauses.append(now - began)
        assert not waits.resumes(now)
    assert pauses[:3] == [factor * DEFAULT.kv_first_pause_s for factor in (1, 2, 4)]
    assert pauses[-1] == DEFAULT.kv_longest_pause_s


def test_reads_that_were_long_in_time_make_the_next_pause_the_first_again() -> None:
    waits, now = KvWaits(), 0.0
    for quiet_s, pause_s in (
        (0.0, DEFAULT.kv_first_pause_s),
        (60.0, 2 * DEFAULT.kv_first_pause_s),
        (DEFAULT.kv_longest_pause_s, DEFAULT.kv_first_pause_s),
    ):
        waits.overdue(now + quiet_s, chunks(1), 0.0)
        now += quiet_s + pause_s
        assert not waits.resumes(now - 0.5)
        assert waits.resumes(now)


def test_chunks_that_are_late_one_after_the_other_cost_one_pause() -> None:
    waits, (first, second) = KvWaits(), chunks(2)
    assert waits.overdue(0.0, [first], 5.0) == []
    assert waits.overdue(1.0, [first, second], 5.0) == []
    assert waits.overdue(5.0, [first, second], 5.0) == [first]
    assert waits.overdue(6.0, [second], 5.0) == [second]
    assert waits.resumes(5.0 + DEFAULT.kv_first_pause_s)


READING = Timing(poll_s=0.02, kv_least_s=0.2, kv_notice_s=0.1)


class Standing(FakeSGLang):
    """A server whose reads of KV stand still: each call waits, unless it reads none."""

    def fault_of(self, call: dict[str, Any]) -> str:
        return "read"


@pytest.mark.parametrize("sampling", [{}, {"frequency_penalty": 0.5}])
async def test_an_engine_whose_reads_stand_still_loses_its_waiting_chunks_and_no_sample(
    sampling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    stands = Standing(plugin=PLUGIN)
    with caplog.at_level(logging.WARNING):
        async with rolling(
            stands, FakeSGLang(plugin=PLUGIN, delay_s=0.02), sampling=sampling, timing=READING
        ) as rollout:
            check(await all_groups(rollout))
            report = rollout.report()
    first, second = report["engines"]
    waited = [call for call in stands.seen if not reads_none(call)]
    assert 0 < len(waited) == len(stands.aborted) == report["lost_chunks"] <= 16
    assert first["chunks"] == len(stands.seen) - len(waited) > 0, "it computes KV instead"
    assert first["kv_wait_s"] == report["kv_wait_s"] > 0
    assert (second["lost_chunks"], second["kv_wait_s"]) == (0, 0.0)
    assert (report["failed_requests"], report["wasted_tokens"]) == (0, 0)
    assert [state["state"] for state in first["states"]] == ["healthy"]
    assert "engine e0 has room, and requests in its queue wait for KV from the pool" in caplog.text
    assert "engine e0: KV was not read from the pool within" in caplog.text


async def test_reads_are_tried_again_after_a_pause() -> None:
    stands = FakeSGLang(plugin=PLUGIN, faults=deque(["read"]), longest=200, delay_s=0.03)
    async with rolling(
        stands,
        sampling={"max_response_len": 300},
        timing=msgspec.structs.replace(READING, kv_first_pause_s=0.05),
    ) as rollout:
        check(await all_groups(rollout), longest=200, limit=300)
        assert rollout.report()["lost_chunks"] == 1
    reads = [not reads_none(call) for call in stands.seen]
    stopped = reads.index(False)
    assert True in reads[stopped:]


async def test_a_read_that_ends_in_time_costs_no_chunk() -> None:
    slow = FakeSGLang(plugin=PLUGIN, faults=deque(["read"] * 3))
    async with rolling(slow, timing=msgspec.structs.replace(READING, kv_least_s=1000.0)) as rollout:
        rolled = asyncio.create_task(all_groups(rollout))
        await until(lambda: len(slow.kv_reads) == 3)
        await until(lambda: rollout.report()["kv_wait_s"] > 0)
        slow.wake_stalled()
        check(await rolled)
        report = rollout.report()
    assert (report["lost_chunks"], slow.aborted) == (0, [])


async def test_a_stock_server_that_names_no_waiting_request_keeps_them() -> None:
    stock = FakeSGLang(faults=deque(["read"]))
    async with rolling(
        stock, FakeSGLang(), engines={"stall_timeout_s": 0.5}, timing=READING
    ) as rollout:
        check(await asyncio.wait_for(all_groups(rollout), 60))
        report = rollout.report()
    assert report["engines"][0]["states"][1]["state"] == "suspect", "it is stuck"
    assert not any(reads_none(call) for call in stock.seen)
