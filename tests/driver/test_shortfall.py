"""A lost reply is detected from the engine's own request count, without false alarms."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from seer_sgl.driver.shortfall import QUIET_POLLS, Shortfall
from seer_sgl.engine_types import EngineLoad
from seer_sgl.scheduling.placement import EngineSlot
from tests.fake_sglang import FakeSGLang
from tests.support.fleets import all_groups, check, rolling
from tests.support.timing import QUICK
from tests.support.waiting import until

POLL_S = 0.5


def slot(inflight: int = 4) -> EngineSlot:
    made = EngineSlot("e0", None, 100)
    made.inflight, made.started, made.completed = inflight, 10, 10 - inflight
    return made


def loads(requests: int | None = 3, prefilled_tokens: int = 0) -> Iterator[EngineLoad]:
    """Yields the loads of an engine that decodes so many requests."""
    for step in range(1000):
        yield EngineLoad(
            used_tokens=0,
            progress=(step,),
            requests=requests,
            prefilled_tokens=prefilled_tokens * step,
        )


def test_an_engine_that_decodes_fewer_requests_than_it_was_sent_is_short_after_several_looks() -> (
    None
):
    shortfall, engine = Shortfall(QUIET_POLLS * POLL_S), slot()
    looks = zip(range(20), loads(), strict=False)
    seen = [shortfall.seen(number * POLL_S, engine, load) for number, load in looks]
    assert seen == [False] * QUIET_POLLS + [True] * (20 - QUIET_POLLS)


@pytest.mark.parametrize(
    "looks",
    [
        loads(4),
        loads(9),  # including five requests of other clients
        loads(None),
        loads(3, prefilled_tokens=1),  # SGLang does not count a request in prefill
        [EngineLoad(used_tokens=0, progress=(), requests=3)] * 100,  # old snapshot or stuck engine
    ],
    ids=["all", "others", "unknown", "prefill", "old"],
)
def test_an_engine_that_may_have_all_its_chunks_is_not_short(looks: Any) -> None:
    shortfall, engine = Shortfall(QUIET_POLLS * POLL_S), slot()
    timed = zip(itertools.count(0.0, POLL_S), looks, strict=False)
    assert not any(shortfall.seen(now, engine, load) for now, load in timed)


@pytest.mark.parametrize("field", ["started", "completed"])
def test_a_chunk_on_its_way_to_or_from_the_engine_is_not_missed(field: str) -> None:
    shortfall, engine = Shortfall(QUIET_POLLS * POLL_S), slot()
    for number, load in enumerate(loads()):
        if number % QUIET_POLLS == 0:
            setattr(engine, field, getattr(engine, field) + 1)
        assert not shortfall.seen(number * POLL_S, engine, load)


def test_few_looks_at_a_large_fleet_take_the_same_time() -> None:
    shortfall, engine = Shortfall(QUIET_POLLS * POLL_S), slot()
    looks = zip((0, 2, 4, 6, 8), loads(), strict=False)
    seen = [shortfall.seen(now, engine, load) for now, load in looks]
    assert seen == [False, False, False, True, True]


def test_one_look_at_all_requests_begins_the_count_anew() -> None:
    shortfall, engine = Shortfall(QUIET_POLLS * POLL_S), slot()
    for number, load in enumerate(loads()):
        full = msgspec.structs.replace(load, requests=4)
        assert not shortfall.seen(number * POLL_S, engine, load if number % QUIET_POLLS else full)


@pytest.mark.parametrize("sampling", [{}, {"frequency_penalty": 0.5}])
async def test_a_lost_reply_on_an_engine_that_works_for_others_costs_its_chunk_only(
    sampling: dict[str, Any],
) -> None:
    loses = FakeSGLang(faults=deque(["ok", "lost"]), decodes_on=True)
    async with rolling(
        loses, sampling={"max_response_len": 60, **sampling}, timing=QUICK
    ) as rollout:
        check(await asyncio.wait_for(all_groups(rollout), 60))
        assert rollout.report()["lost_chunks"] == 1
    assert len(loses.aborted) == 1
    assert loses.aborted[0] == loses.seen[1]["rid"]


async def test_a_chunk_that_all_others_overtake_is_left_where_it_runs() -> None:
    slow = FakeSGLang(faults=deque(["ok", "stall"]), decodes_on=True)
    async with rolling(slow, timing=QUICK) as rollout:
        rolled = asyncio.create_task(all_groups(rollout))
        await until(lambda: len(slow.seen) > 17 and rollout.driver.states()[0].inflight == 1)
        looks = slow.foreign_steps
        await until(lambda: slow.foreign_steps > looks + 3 * QUIET_POLLS)
        assert not rolled.done()
        slow.wake_stalled()
        check(await rolled)
        assert rollout.report()["lost_chunks"] == 0
    assert not slow.aborted
