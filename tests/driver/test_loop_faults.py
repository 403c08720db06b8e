"""The loop and the monitor when engines fail or a caller leaves early: no sample is lost, and no
state is left over."""

import asyncio
import contextlib
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.stall import StallClock
from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import EngineStartError, RolloutError
from seer_sgl.timing import Timing
from seer_sgl.types import ChunkResult, Failure, FailureKind, Group
from tests.fake_sglang import VOCAB, FakeSGLang
from tests.garbage import GARBAGE
from tests.support.fleets import PROMPTS, all_groups, check, rolling
from tests.support.timing import QUICK
from tests.support.waiting import until


@pytest.mark.parametrize("fault", ["reset", "mid_body", "503", "abort", "abort_late", "slow"])
async def test_faults_on_one_engine_lose_nothing_and_change_nothing(fault: str) -> None:
    bad = FakeSGLang(faults=deque(["ok", fault, fault, "ok", fault]), longest=200)
    async with rolling(
        bad, FakeSGLang(longest=200), sampling={"max_response_len": 300}, timing=QUICK
    ) as rollout:
        groups = await all_groups(rollout)
        check(groups, longest=200, limit=300)
        report = rollout.report()
    assert len(bad.seen) >= 5, "the engine came back after its faults"
    lost = {"abort": 0, "abort_late": 0, "slow": 0}.get(fault, 3)
    assert report["lost_chunks"] == lost


@pytest.mark.parametrize(
    "sampling", [{"json_schema": "{}"}, {"frequency_penalty": 0.5}, {"stop_regex": "a+b"}]
)
async def test_an_aborted_request_that_cannot_be_continued_begins_again_from_its_prompt(
    sampling: dict[str, Any],
) -> None:
    fake = FakeSGLang(faults=deque(["ok", "abort", "abort_late", "ok"] * 3), longest=200)
    async with rolling(
        fake, sampling={"max_response_len": 150, **sampling}, timing=QUICK
    ) as rollout:
        groups = await all_groups(rollout)
        check(groups, longest=200, limit=150)
        report = rollout.report()
    assert {len(call["input_ids"]) for call in fake.seen} == {3, 7, 11, 20}, "prompts, no more"
    assert {call["sampling_params"]["max_new_tokens"] for call in fake.seen} == {150}
    assert all(sample.chunks == 1 for group in groups for sample in group.samples)
    assert report["lost_chunks"] == 6
    (engine,) = report["engines"]
    assert engine["response_tokens"] == report["response_tokens"], "dropped tokens do not count"


async def test_replies_that_cannot_be_true_cost_chunks_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpEngine, "vocab_size", property(lambda _: VOCAB, lambda *_: None))
    shapes = [shape for shape in GARBAGE if shape != "endless"]
    bad = FakeSGLang(faults=deque(f"garbage {shape}" for shape in shapes), longest=200)
    good = FakeSGLang(longest=200, delay_s=0.05)
    async with rolling(
        bad,
        good,
        sampling={"max_response_len": 300},
        timing=Timing(poll_s=0.005, readmission_most_s=0.005),
    ) as rollout:
        check(await all_groups(rollout), longest=200, limit=300)
        first, second = rollout.report()["engines"]
    assert not bad.faults
    assert first["bad_replies"] == first["lost_chunks"] == len(shapes)
    assert second["bad_replies"] == 0


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/loads", "deep"),
        ("/server_info", "no schedulers"),
        ("/server_info", "a report without a version"),
    ],
)
async def test_an_engine_that_garbles_what_it_says_of_itself_is_left_alone_until_it_does_not(
    path: str, shape: str
) -> None:
    bad, good = FakeSGLang(faults=deque(["ok", "503"])), FakeSGLang(delay_s=0.02)
    async with rolling(bad, good, timing=QUICK) as rollout:
        bad.garbled = {path: shape}
        check(await all_groups(rollout))
        assert not rollout.driver.available("e0")
        before = len(bad.seen)
        bad.garbled = {}
        check(await all_groups(rollout))
    assert len(bad.seen) > before, "the engine is used again"


class Flickering(FakeSGLang):
    """Answers every second poll."""

    answers = False

    @override
    async def loads(self, http: web.Request) -> web.Response:
        self.answers = not self.answers
        return await super().loads(http) if self.answers else web.Response(status=503)


@pytest.mark.parametrize("kind", [FakeSGLang, Flickering])
async def test_a_stuck_engine_loses_its_chunks_to_the_other(kind: type[FakeSGLang]) -> None:
    stuck = kind(faults=deque(["ok", "ok"] + ["stall"] * 1000), healthy=False)
    engines = {"stall_timeout_s": 0.3}
    async with rolling(stuck, FakeSGLang(), engines=engines, timing=QUICK) as rollout:
        check(await all_groups(rollout))
        assert rollout.report()["lost_chunks"] >= 1
    assert stuck.aborted, "chunks taken back are aborted on the engine"


@dataclass(eq=False)
class Picky(FakeSGLang):
    """Refuses the prompt of 11 tokens, or a continuation of it, or fails on it."""

    status: str = "400"
    length: int = 11

    def fault_of(self, call: dict[str, Any]) -> str:
        ids = call["input_ids"]
        return self.status if ids[:11] == [5] * 11 and len(ids) == self.length else ""


async def test_a_request_that_always_fails_gives_up_its_group_and_no_other() -> None:
    """Each failure takes the engine out before the monitor polls it."""
    prompts = [*PROMPTS, *({"prompt_ids": [6] * 9, "id": f"q{i}"} for i in range(28))]
    groups = []
    async with rolling(
        Picky(status="500", delay_s=0.005),
        engines={"recovery_timeout_s": 0.2},
        timing=Timing(poll_s=0.01, readmission_most_s=0.02),
    ) as rollout:
        with pytest.raises(RolloutError, match=r"1 of 32 groups .* HTTP 500"):
            async for group in rollout.run(prompts):
                groups.append(group)  # noqa: PERF401
    assert len(groups) == 31


@pytest.mark.parametrize("count", [1, 3])
async def test_a_request_that_sglang_refuses_gives_up_its_group_only(count: int) -> None:
    fakes = [Picky(length=11 + 8) for _ in range(count)]
    groups = []
    async with rolling(*fakes) as rollout:
        with pytest.raises(RolloutError, match=r"1 of 4 groups were given up") as raised:
            async for group in rollout.run(PROMPTS):
                groups.append(group)  # noqa: PERF401
        report = rollout.report()
    assert len(groups) == 3
    assert (report["groups"], report["unfinished_groups"]) == (3, 1)
    assert report["wasted_tokens"] > 0
    message = str(raised.value)
    named = re.findall(r"engine e\d \(http://\S+\): HTTP 400: fault 400", message)
    assert len(set(named)) == min(count, 2), "the engines that refused it"
    assert ("two engines refused it: " in message) is (count > 1)


@pytest.mark.process
@pytest.mark.parametrize("status", ["400", "401", "403", "404", "405", "413", "422"])
async def test_an_engine_that_refuses_everything_costs_no_group(status: str) -> None:
    refuses = FakeSGLang(faults=deque(["ok"] * 4 + [status] * 100_000), delay_s=0.002, longest=200)
    serves = FakeSGLang(delay_s=0.002, longest=200, max_running_requests=3)
    engines = {"recovery_timeout_s": 0.2}
    async with rolling(
        refuses, serves, engines=engines, sampling={"max_response_len": 300}, timing=QUICK
    ) as rollout:
        check(await all_groups(rollout), longest=200, limit=300)
        report = rollout.report()
    assert report["unfinished_groups"] == 0
    assert len(refuses.seen) > 4


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        *[(status, f"HTTP {status}: fault {status}") for status in ("400", "405", "500")],
        ("abort_queued", "before its first token"),
    ],
)
async def test_a_fleet_that_refuses_or_aborts_everything_and_is_healthy_ends_the_rollout(
    fault: str, why: str
) -> None:
    fakes = [FakeSGLang(faults=deque([fault] * 100_000)) for _ in range(2)]
    async with rolling(*fakes, engines={"recovery_timeout_s": 0.3}, timing=QUICK) as rollout:
        with pytest.raises(RolloutError, match=why):
            await asyncio.wait_for(all_groups(rollout), 60)
    assert sum(len(fake.seen) for fake in fakes) > len(PROMPTS)


async def test_no_engine_left_is_an_error_that_keeps_what_had_finished() -> None:
    fake = FakeSGLang(longest=5, faults=deque(["ok"] * 6 + ["reset"] * 1000), healthy=False)
    async with rolling(fake, engines={"recovery_timeout_s": 0.3}, timing=QUICK) as rollout:
        with pytest.raises(RolloutError, match=r"no engine has served for 0\.3 s"):
            await all_groups(rollout)
        assert rollout.report()["samples"] >= 1


async def test_leaving_early_aborts_what_is_in_flight_and_the_next_run_is_clean() -> None:
    class Watcher(Observer):
        def __init__(self) -> None:
            self.groups: list[Group] = []

        def closed(self, group: Group, failure: Failure | None) -> None:
            if failure is not None:
                assert failure.kind is FailureKind.LEFT
                self.groups.append(group)

    fake, watcher = FakeSGLang(delay_s=0.02), Watcher()
    async with rolling(fake) as rollout:
        async with contextlib.aclosing(rollout.run(PROMPTS, [watcher])) as groups:
            complete = await anext(groups)
            await until(lambda: fake.running)
        given_up = {group.group_id for group in watcher.groups}
        assert complete.group_id not in given_up
        assert len(given_up) == len(watcher.groups) >= 1
        assert all(group.withdrawn and not group.complete for group in watcher.groups)
        fake.delay_s = 0.0
        check(await all_groups(rollout))
        report = rollout.report()
        assert report["samples"] == 16
        assert report["seed"] not in (1, 2)
    assert fake.aborted


@pytest.mark.process
async def test_closing_tells_the_engine_of_every_chunk_in_flight() -> None:
    fake = FakeSGLang(faults=deque(["ok"] * 4 + ["stall"] * 196), longest=1)
    async with rolling(
        fake,
        rollout={"n_samples_per_prompt": 50},
        timing=Timing(abort_timeout_s=60.0, settle_s=60.0),
    ) as rollout:
        groups = rollout.run(PROMPTS)
        waiting = asyncio.ensure_future(anext(groups))
        await asyncio.wait_for(fake.stalled.wait(), 60)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert len(fake.aborted) == 196


@pytest.mark.process
async def test_an_engine_that_was_away_between_two_runs_does_no_harm() -> None:
    fake = FakeSGLang()
    async with rolling(fake, engines={"recovery_timeout_s": 0.5}, timing=QUICK) as rollout:
        check(await all_groups(rollout))
        fake.away, polls = True, fake.polls
        # 1.5 s as the monitor counts; in a run 1 s without any engine ends it.
        await until(lambda: fake.polls >= polls + 75)
        fake.away = False
        check(await all_groups(rollout))


async def test_a_run_closed_before_its_chunks_started_leaves_nothing_reserved() -> None:
    async with rolling(FakeSGLang()) as rollout:
        for turns in range(6):
            first = asyncio.ensure_future(anext(rollout.run(PROMPTS)))
            for _ in range(turns):  # the loop runs one turn further in each case
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait({first})
        check(await all_groups(rollout))
        (engine,) = rollout.driver.states()
        assert (engine.inflight, engine.promised_tokens) == (0, 0)


async def test_an_engine_that_cannot_be_joined_is_named() -> None:
    config = {"engines": {"launch": "external", "urls": ["http://127.0.0.1:9"]}}
    with pytest.raises(EngineStartError, match=r"engine e0 \(http://127.0.0.1:9\)"):
        async with Rollout(config, timing=Timing(join_timeout_s=0.1)):
            pass


async def test_a_program_error_in_the_loop_reaches_the_caller() -> None:
    async with rolling(FakeSGLang()) as rollout:
        rollout.driver._loop.flights._amend = lambda *_: 1 / 0  # type: ignore[assignment]
        with pytest.raises(RolloutError, match="the driver failed: ZeroDivisionError"):
            await asyncio.wait_for(all_groups(rollout), 60)


async def test_an_observer_that_raises_what_cancels_leaves_no_caller_waiting() -> None:
    class Cancelled(Observer):
        @override
        def grown(self, result: ChunkResult) -> None:
            raise asyncio.CancelledError

    async with rolling(FakeSGLang()) as rollout:
        with pytest.raises(RolloutError, match="an observer raised CancelledError"):
            await asyncio.wait_for(all_groups(rollout, Cancelled()), 60)


def test_the_stall_clock_wants_work_and_no_movement() -> None:
    clock = StallClock(10.0)
    assert not clock.stalled(0.0, 1, ("a",))
    assert not clock.stalled(9.0, 1, ("a",))
    assert clock.stalled(10.0, 1, ("a",))
    assert not clock.stalled(11.0, 1, ("b",)), "it made progress"
    assert not clock.stalled(30.0, 0, ("b",)), "it has no work"
    assert not clock.stalled(39.0, 1, ("b",)), "idle time does not count"
    assert not clock.stalled(48.0, 1, ("b",)), "its work is no older than the last call"
    assert clock.stalled(49.0, 1, ("b",))
