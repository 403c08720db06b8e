"""The driver's calls on fake servers with real sockets.

Concurrent runs, growing groups, aborts, pauses, new weights, engines that join and leave, and
streamed tokens.
"""

import asyncio
from array import array
from collections import deque
from itertools import pairwise
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl.config import EnginesConfig
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.loop import AT_ONCE
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine_types import ServerState
from seer_sgl.errors import ChunkRecalled, ConfigError, RolloutError
from seer_sgl.timing import Timing
from seer_sgl.types import (
    ChunkResult,
    FailureKind,
    Prompt,
    Request,
    Sample,
    Sampling,
    token_array,
)
from tests.fake_sglang import FakeSGLang, response_of
from tests.support.drivers import CHUNK, LIMIT, Events, all_of, check, staged, whole
from tests.support.timing import QUICK
from tests.support.waiting import polled, until


async def test_events_come_in_order_and_a_sample_with_its_own() -> None:
    events = Events()
    async with staged(FakeSGLang(faults=deque(["ok", "503"]))) as stage:
        groups = stage.groups(1, n=1)
        check([group async for group in stage.driver.submit(groups, [events])], n=1)
    assert events.kinds[:5] == ["sent", "grown", "sent", "lost", "sent"]
    assert events.kinds[-3:] == ["grown", "finished", "closed"]
    assert events.failures == [None]
    (error,) = events.errors
    assert (error.engine_id, error.status, error.kind) == ("e0", 503, "unavailable")  # type: ignore[attr-defined]


async def test_others_have_a_turn_while_many_chunks_are_sent() -> None:
    events, seen = Events(), [0]
    async with staged(FakeSGLang()) as stage:
        groups = stage.groups(1, n=AT_ONCE + 50)
        rolled = asyncio.create_task(all_of(stage.driver.submit(groups, [events])))
        while not rolled.done():
            await asyncio.sleep(0)
            seen.append(events.kinds.count("sent"))
        (group,) = await rolled
    assert len(group.samples) == AT_ONCE + 50
    assert max(after - before for before, after in pairwise(seen)) == AT_ONCE


async def test_one_of_two_callers_with_equal_group_ids_leaves_half_way() -> None:
    stays, leaves = Events(), Events()
    async with staged(FakeSGLang(delay_s=0.005), FakeSGLang(delay_s=0.005)) as stage:
        mine = stage.driver.submit(stage.groups(4, run_id="a"), [stays])
        others = stage.driver.submit(stage.groups(4, run_id="b", max_new_tokens=9), [leaves])
        await anext(others)
        others.close()
        rest = [group async for group in others]
        check(await all_of(mine))
    failures = [failure for failure in leaves.failures if failure is not None]
    assert {failure.kind for failure in failures} == {FailureKind.LEFT}
    assert len([group for group in rest if group.failure is not None]) == len(failures) > 0
    assert stays.failures == [None] * 4


async def test_the_uids_of_a_run_that_was_closed_are_free_although_its_chunks_are_in_flight() -> (
    None
):
    async with staged(FakeSGLang(delay_s=0.05)) as stage:
        left = stage.driver.submit(stage.groups(2))
        await until(lambda: stage.driver.in_flight("e0") > 0)
        left.close()
        check(await all_of(stage.driver.submit(stage.groups(2))))
        assert stage.driver.check() == []


async def test_a_group_grows_until_it_is_complete() -> None:
    async with staged(FakeSGLang()) as stage:
        maker = GroupMaker("grows", 7)
        prompt = Prompt(prompt_id="p", prompt_ids=token_array([5, 5, 5]), n=1)
        group = maker.group(prompt, Sampling(max_new_tokens=LIMIT), LIMIT, 0.0)
        group.growing = True
        run = stage.driver.submit([group])
        for count in (1, 2):
            await until(lambda: len(group.samples) == len(group.requests))
            run.grow(group, maker.requests(group, count, LIMIT, 0.0))
        over = asyncio.ensure_future(anext(run))
        await until(lambda: len(group.samples) == 4)
        assert not over.done()
        run.complete_group(group)
        check([await over])
        with pytest.raises(ValueError, match="does not grow"):
            run.grow(group, maker.requests(group, 1, LIMIT, 0.0))
        with pytest.raises(StopAsyncIteration):
            await anext(run)
    fixed = maker.group(prompt, Sampling(), LIMIT, 0.0)
    reference = [request.seed for request in maker.requests(fixed, 3, LIMIT, 0.0)]
    assert [request.seed for request in group.requests[1:]] == reference


async def test_a_group_of_no_run_or_of_another_one_cannot_grow() -> None:
    async with staged(FakeSGLang()) as stage:
        group, other = stage.groups(2)
        group.growing = other.growing = True
        run, idle = stage.driver.submit([group]), stage.driver.open_run()
        for wrong, asked in ((other, run), (group, idle)):
            with pytest.raises(ValueError, match="does not grow in this run"):
                asked.grow(wrong, GroupMaker("more", 7).requests(wrong, 1, LIMIT, 0.0))
        run.complete_group(group)
        check(await all_of(run))
        idle.close()
        assert stage.driver.check() == []


@pytest.mark.parametrize("sampling", [{}, {"regex": "[0-9]+"}], ids=["divided", "whole"])
async def test_an_abort_is_a_result_with_the_tokens_so_far(sampling: dict[str, Any]) -> None:
    events = Events()
    faults = deque([] if sampling else ["ok"] * 4) + deque(["slow"] * 4)
    fake = FakeSGLang(faults=faults, longest=1 << 16)
    async with staged(fake) as stage:
        (group,) = stage.groups(1, n=4, **sampling)
        run = stage.driver.submit([group], [events])
        await until(lambda: len(fake.seen) == (4 if sampling else 8))
        for request in group.requests:
            run.abort(request)
        assert (await anext(run)).failure is None
    assert events.errors == []
    assert [sample.finish_reason for sample in events.samples] == ["abort"] * 4
    for sample in events.samples:
        prefix = list(sample.response_ids)
        whole_response = response_of(sample.seed, len(sample.prompt_ids), 1 << 16)
        assert prefix == whole_response[: len(prefix)]
        assert len(prefix) >= (1 if sampling else CHUNK)


async def test_requests_that_wait_are_aborted_at_once_and_finished_ones_stay() -> None:
    fake = FakeSGLang(max_running_requests=1, faults=deque(["stall"]))
    async with staged(fake) as stage:
        (group,) = stage.groups(1, n=3)
        run = stage.driver.submit([group])
        await until(lambda: len(fake.seen) == 1)
        for request in group.requests[1:]:
            run.abort(request)
            run.abort(request)
        assert [len(sample.response_ids) for sample in group.samples] == [0, 0]
        fake.wake_stalled()
        *_, last = (await anext(run)).samples
        run.abort(group.requests[0])
        assert list(last.response_ids) == whole(last)
        assert [sample.finish_reason for sample in group.samples] == ["abort", "abort", "stop"]


async def test_an_abort_of_a_deaf_engine_ends_without_the_chunks_tokens() -> None:
    fake = FakeSGLang(faults=deque(["ok", "stall"]), longest=1 << 20)
    async with staged(fake, timing=Timing(recall_s=0.05)) as stage:
        (group,) = stage.groups(1, n=1)
        run = stage.driver.submit([group])
        await until(lambda: len(fake.seen) == 2)
        run.abort(group.requests[0])
        (sample,) = (await anext(run)).samples
    assert (sample.finish_reason, sample.response_length) == ("abort", CHUNK)


async def test_a_pause_keeps_tokens_and_sends_nothing_until_it_is_over() -> None:
    events = Events()
    fakes = [FakeSGLang(delay_s=600.0), FakeSGLang(delay_s=600.0)]  # until they are aborted
    async with staged(*fakes, timing=QUICK) as stage:
        run = stage.driver.submit(stage.groups(4), [events])
        await until(lambda: sum(fake.running for fake in fakes) == 16)
        await stage.driver.pause()
        for fake in fakes:
            fake.delay_s = 0.0
        assert sum(fake.running for fake in fakes) == 0
        seen = sum(len(fake.seen) for fake in fakes)
        assert any(fake.aborted for fake in fakes)
        await asyncio.gather(*map(polled, fakes))
        assert sum(len(fake.seen) for fake in fakes) == seen
        stage.driver.resume()
        check(await all_of(run))
    assert len(events.errors) < 8, "a partial chunk is kept if it has a token"
    assert all(isinstance(error, ChunkRecalled) for error in events.errors)


async def test_a_fleet_of_two_becomes_three_and_then_one() -> None:
    events = Events()
    fakes = [FakeSGLang(delay_s=0.004) for _ in range(3)]
    async with staged(*fakes, joined=2) as stage:
        driver = stage.driver
        run = driver.submit(stage.groups(12), [events])
        await until(lambda: all(len(fake.seen) > 10 for fake in fakes[:2]))
        driver.add_engine(stage.engines[2])
        with pytest.raises(ConfigError, match="engine e2 is already in the fleet"):
            driver.add_engine(stage.engines[2])
        await until(lambda: len(fakes[2].seen) > 10)
        for engine_id in ("e0", "e1"):
            await driver.remove_engine(engine_id)
        assert [info.engine_id for info in driver.engines] == ["e2"]
        assert not fakes[0].running
        assert not fakes[1].running
        check(await all_of(run))
        with pytest.raises(ConfigError, match="engine e0 is not in the fleet"):
            await driver.remove_engine("e0")
        assert driver.check() == []
    assert [kind for kind in events.kinds if " " in kind] == ["joined e2", "left e0", "left e1"]
    assert len(events.errors) < 8, "partial chunks are kept if they have a token"
    assert all(isinstance(error, ChunkRecalled) for error in events.errors)


async def test_an_engine_that_does_not_fit_is_refused() -> None:
    smaller, newer = FakeSGLang(max_request_len=50), FakeSGLang(weight_version="v2")
    async with staged(FakeSGLang(), smaller, newer, joined=1) as stage:
        with pytest.raises(ConfigError, match="engine e1: it accepts 50 tokens per request"):
            stage.driver.add_engine(stage.engines[1])
        with pytest.raises(ConfigError, match=r"different weight versions \(e0: v1, e2: v2\)"):
            stage.driver.add_engine(stage.engines[2])


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
async def test_tokens_of_watched_requests_come_once_and_are_final(incremental: bool) -> None:
    events = Events()
    faults = deque(["ok", "mid_body", "abort", "ok", "503", "mid_body"])
    fake = FakeSGLang(incremental=incremental, faults=faults)
    async with staged(fake) as stage:
        groups = stage.groups(3, n=2)
        for group in groups[:2]:
            group.requests[0].streaming = True
        check(await all_of(stage.driver.submit(groups, [events])), n=2)
    watched = {request.uid: request for group in groups for request in group.requests[:1]}
    assert len(events.streamed_ids) == 2
    for uid, ids in events.streamed_ids.items():
        assert ids == watched[uid].response_ids
    assert sum(bool(call.get("stream")) for call in fake.seen) > 4
    assert sum(not call.get("stream") for call in fake.seen) > 4


async def test_a_watched_request_keeps_nothing_of_an_engine_restarted_unnoticed() -> None:
    events, first, second = Events(), FakeSGLang(delay_s=0.01), FakeSGLang()
    async with staged(first, second, joined=1) as stage:
        (group,) = stage.groups(1, n=1)
        group.requests[0].streaming = True
        run = stage.driver.submit([group], [events])
        await until(lambda: bool(events.streamed_ids))
        first.startup_s, first.weight_version = 30.5, "v2"
        stage.driver.add_engine(stage.engines[1])
        check([await anext(run)], n=1)
    assert "restarted" in str(events.errors[0])
    (sample,) = events.samples
    assert {span.version for span in sample.weight_spans} == {"v1"}
    assert events.streamed_ids[group.requests[0].uid] == sample.response_ids


async def test_an_engine_that_goes_and_comes_back_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "seer_sgl.driver")
    first, second = FakeSGLang(), FakeSGLang()
    async with staged(first, second) as stage:
        first.away = True
        await until(lambda: not stage.driver.available("e0"))
        first.away = False
        await until(lambda: stage.driver.available("e0"))
        await until(lambda: len(caplog.messages) == 2)
        await stage.driver.remove_engine("e1")
    out, back = caplog.messages
    assert out.startswith("engine e0 is out of service: ")
    assert back == "engine e0 serves again"


async def test_an_undividable_watched_request_reports_what_counts_only() -> None:
    events = Events()
    fake = FakeSGLang(faults=deque(["slow", "abort"]))
    async with staged(fake) as stage:
        (group,) = stage.groups(1, n=1, presence_penalty=0.5)
        group.requests[0].streaming = True
        run = stage.driver.submit([group], [events])
        await until(lambda: fake.running == 1)
        await stage.driver.pause()
        stage.driver.resume()
        check([await anext(run)], n=1)
    assert len(fake.seen) == 3, "it began anew after each abort"
    assert events.streamed_ids[group.requests[0].uid] == group.requests[0].response_ids


@pytest.mark.parametrize("when", ["streamed", "grown", "finished"])
@pytest.mark.parametrize("what", ["abort", "close", "complete"])
async def test_an_observer_may_end_its_own_run(when: str, what: str) -> None:
    acted: list[Request] = []

    class Ends(Observer):
        def act(self, event: str, request: Request) -> None:
            if event != when:
                return
            acted.append(request)
            if what == "abort":
                for sibling in request.group.requests:
                    run.abort(sibling)
            elif what == "close":
                run.close()
            else:
                run.complete_group(request.group)

        @override
        def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
            self.act("streamed", request)

        @override
        def grown(self, result: ChunkResult) -> None:
            self.act("grown", result.chunk.request)

        @override
        def finished(self, request: Request, sample: Sample) -> None:
            self.act("finished", request)

    async with staged(FakeSGLang(delay_s=0.002)) as stage:
        (group,) = stage.groups(1, n=3)
        group.growing = what == "complete"
        for request in group.requests:
            request.streaming = when == "streamed"
        run = stage.driver.submit([group], [Ends()])
        innocent = stage.driver.submit(stage.groups(2, run_id="other"))
        (over,) = [each async for each in run]
        check(await all_of(innocent))
    assert acted
    assert len({sample.index for sample in over.samples}) == len(over.samples)
    assert (over.failure is not None) == (len(over.samples) < 3) == (what == "close")


async def test_nobody_waits_for_a_driver_that_has_ended() -> None:
    fake = FakeSGLang(faults=deque(["stall"] * 4))
    async with staged(fake, engines=EnginesConfig(recovery_timeout_s=0.1), timing=QUICK) as stage:
        driver = stage.driver
        run = driver.submit(stage.groups(1))
        await until(lambda: fake.running == 4)
        leaving = asyncio.create_task(driver.remove_engine("e0"))
        fake.away = True
        with pytest.raises(RolloutError, match="no engine has served"):
            await all_of(run)
        calls = (leaving, driver.pause(), driver.remove_engine("e0"))
        for call in calls:
            with pytest.raises(RolloutError, match="no engine has served"):
                await asyncio.wait_for(call, 30)
        fake.wake_stalled()


async def test_engines_that_join_or_come_back_serve_the_new_weights() -> None:
    fakes = [FakeSGLang() for _ in range(4)]
    async with staged(*fakes, joined=2, timing=QUICK) as stage:
        driver = stage.driver
        fakes[1].away = True
        run = driver.submit(stage.groups(1, n=1))
        await until(lambda: not driver.available("e1"))
        fakes[0].weight_version = fakes[2].weight_version = "v2"
        await driver.pause()
        await stage.engines[0].refresh()
        driver.adopt_weights("v2")
        driver.resume()
        with pytest.raises(ConfigError, match="engine e3: it serves weights v1, not v2"):
            driver.add_engine(stage.engines[3])
        await stage.engines[2].refresh()
        driver.add_engine(stage.engines[2])
        fakes[1].startup_s, fakes[1].weight_version = 30.5, "v2"  # restarted
        fakes[1].away = False
        await until(lambda: driver.available("e1"))
        check(await all_of(run), n=1)


async def test_a_pause_lasts_until_everybody_has_taken_theirs_back() -> None:
    fake = FakeSGLang()
    async with staged(fake, timing=QUICK) as stage:
        await asyncio.gather(stage.driver.pause(), stage.driver.pause())
        run = stage.driver.submit(stage.groups(1))
        stage.driver.resume()
        await polled(fake)
        assert not fake.seen
        stage.driver.resume()
        check(await all_of(run))


async def test_what_cannot_be_submitted_changes_nothing() -> None:
    async with staged(FakeSGLang(delay_s=0.01)) as stage:
        groups, again = stage.groups(2), stage.groups(2)
        run = stage.driver.submit(groups, caller="a")
        for wrong in (groups, again, [stage.groups(1, run_id="x")[0]] * 2):
            with pytest.raises(ValueError, match="is being rolled out already"):
                stage.driver.submit(wrong, caller="b")
        with pytest.raises(ConfigError, match="stop strings need a tokenizer"):
            stage.driver.submit(stage.groups(1, run_id="y", stop=["x"]))
        assert [group.caller for group in groups] == ["a", "a"]
        empty = stage.groups(1, n=0, run_id="z")
        check(await all_of(stage.driver.submit(empty)), n=0)
        check(await all_of(run))
        twice = [stage.driver.remove_engine("e0") for _ in range(2)]
        first, second = await asyncio.gather(*twice, return_exceptions=True)
        assert first is None
        assert second is None or isinstance(second, ConfigError)
        with pytest.raises(RolloutError, match="the fleet has no engine"):
            _ = stage.driver.limits


class Reloading(HttpEngine):
    """An engine that was restarted, and that loads a folder as slowly as `slow` says."""

    def __init__(self, engine: HttpEngine, fake: FakeSGLang) -> None:
        super().__init__(engine.info, engine._session, lambda: ServerState(starts=self.starts))
        self.starts = 0
        self.fake = fake
        self.loading = asyncio.Event()
        self.slow = asyncio.Event()

    @override
    async def _load_weights(self, path: str, version: str) -> None:
        self.loading.set()
        await self.slow.wait()
        update(self.fake, path, version)


def update(fake: FakeSGLang, weights: str, version: str) -> None:
    assert fake.plugin is not None
    fake.plugin["weights"] = fake.model_path = weights
    fake.weight_version = version


@pytest.mark.parametrize("ends", ["in the update", "after it"])
async def test_an_engine_that_loaded_old_weights_during_an_update_does_not_serve_them(
    ends: str,
) -> None:
    reports = [{"version": "1", "missing": [], "instance": name, "weights": "old"} for name in "ab"]
    fakes = [FakeSGLang(plugin=report, model_path="old") for report in reports]
    async with staged(*fakes, joined=1, timing=Timing(poll_s=0.01)) as stage:
        engine = Reloading(stage.engines[1], fakes[1])
        stage.driver.add_engine(engine)
        await until(lambda: stage.driver.available("e1"))
        update(fakes[1], "base", "v1")
        reports[1]["instance"], engine.starts = "c", 1
        await engine.loading.wait()
        await stage.driver.pause()
        for each, fake in ((stage.engines[0], fakes[0]), (engine, fakes[1])):
            update(fake, "new", "v1")
            await each.refresh(new_weights=True)
        if ends == "in the update":
            engine.slow.set()
            await until(lambda: reports[1]["weights"] == "old")
            polls = fakes[0].polls  # ten of them last longer than the six calls of a check of e1
            await until(lambda: fakes[0].polls >= polls + 10)
            assert not stage.driver.available("e1"), "it waits for the end of the pause"
        stage.driver.adopt_weights(None)
        stage.driver.resume()
        engine.slow.set()
        await until(lambda: stage.driver.available("e1"))
        assert reports[1]["weights"] == "new"
