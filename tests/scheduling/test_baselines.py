"""The baselines: whole groups, pinned to an engine, all sent at once."""

import gc
import weakref

import pytest

from seer_sgl.errors import EngineDied, EngineUnavailable
from seer_sgl.scheduling.engine_index import UNLIMITED, EngineSlot
from seer_sgl.scheduling.placement import CacheAware
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.strategy import make_strategy
from seer_sgl.types import Chunk, ChunkResult, Move
from tests.helpers import LEFT, make_group, make_reply
from tests.scheduling.chunks import submitted, take, take_all


def baseline(name: str, engines: int = 3) -> Scheduler:
    strategy = make_strategy(name, CacheAware())
    assert strategy.undivided
    scheduler = Scheduler(
        10,
        divide=False,
        make_policy=strategy.make_policy,
        placement=strategy.placement,
        patience_s=0.0,
    )
    for i in range(engines):
        scheduler.add_engine(EngineSlot(f"e{i}", None, UNLIMITED))
    return scheduler


def engines_by_group(chunks: list[Chunk]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for chunk in chunks:
        found.setdefault(chunk.request.group.group_id, set()).add(chunk.engine_id)
    return found


def test_groups_go_round_the_engines_whole_and_all_at_once() -> None:
    scheduler = baseline("group_round_robin")
    for i, n in enumerate((4, 1, 2, 3)):
        scheduler.submit(make_group(f"g{i}", n=n, max_response_len=77))
    chunks = take_all(scheduler)
    assert len(chunks) == 10
    assert {chunk.max_new_tokens for chunk in chunks} == {77}
    assert engines_by_group(chunks) == {"g0": {"e0"}, "g1": {"e1"}, "g2": {"e2"}, "g3": {"e0"}}


def test_requests_go_round_the_engines_one_by_one_and_all_at_once() -> None:
    scheduler = baseline("request_round_robin")
    for i, n in enumerate((4, 1, 2)):
        scheduler.submit(make_group(f"g{i}", n=n, max_response_len=77))
    chunks = take_all(scheduler)
    assert {chunk.max_new_tokens for chunk in chunks} == {77}
    assert [chunk.engine_id for chunk in chunks] == ["e0", "e1", "e2"] * 2 + ["e0"]
    scheduler.set_available("e1", False)
    lost = next(chunk for chunk in chunks if chunk.engine_id == "e1")
    scheduler.complete(ChunkResult(chunk=lost, now=1.0, error=EngineUnavailable("gone")))
    (again,) = take_all(scheduler)
    assert again.engine_id == "e2"


def test_groups_go_to_the_engine_with_the_fewest_requests() -> None:
    scheduler = baseline("group_least_loaded")
    for i, n in enumerate((4, 1, 2, 3)):
        scheduler.submit(make_group(f"g{i}", n=n))
    chunks = take_all(scheduler)
    assert engines_by_group(chunks) == {"g0": {"e0"}, "g1": {"e1"}, "g2": {"e2"}, "g3": {"e1"}}
    for chunk in chunks:
        if chunk.engine_id == "e0":
            scheduler.complete(ChunkResult(chunk=chunk, now=1.0, reply=make_reply(1, "stop")))
    scheduler.submit(make_group("g4", n=2))
    assert engines_by_group(take_all(scheduler)) == {"g4": {"e0"}}


@pytest.mark.parametrize("name", ["group_round_robin", "group_least_loaded"])
def test_what_an_engine_lost_goes_to_another_and_no_pin_is_left(name: str) -> None:
    scheduler = baseline(name, engines=2)
    group = submitted(scheduler, "g", n=3)
    first = take_all(scheduler)
    pinned = first[0].engine_id
    scheduler.set_available(pinned, False)
    for chunk in first[:2]:
        scheduler.complete(ChunkResult(chunk=chunk, now=1.0, error=EngineUnavailable("gone")))
    reply = make_reply(5, "abort")
    scheduler.complete(ChunkResult(chunk=first[2], now=1.0, reply=reply))
    again = take_all(scheduler)
    assert len(again) == 3
    assert engines_by_group(again)["g"].isdisjoint({pinned})
    assert {chunk.move for chunk in again if chunk.migrated} == {Move.PREFILL}
    pinned_group = weakref.ref(group)
    scheduler.withdraw(group, LEFT)
    for chunk in again:
        scheduler.complete(ChunkResult(chunk=chunk, now=1.0, error=EngineUnavailable("gone")))
    del group, first, again, chunk
    gc.collect()
    assert pinned_group() is None


@pytest.mark.parametrize("name", ["group_round_robin", "group_least_loaded", "request_round_robin"])
def test_no_request_joins_a_suspect_on_the_engine_that_tests_it(name: str) -> None:
    scheduler = baseline(name, engines=1)
    scheduler.submit(make_group("g", n=2))
    died = EngineDied("it was killed", engine_id="e0")
    scheduler.complete(ChunkResult(chunk=take(scheduler), now=1.0, error=died))
    (test,) = take_all(scheduler)
    scheduler.complete(ChunkResult(chunk=test, now=2.0, reply=make_reply(1)))
    assert len(take_all(scheduler)) == 2


def test_what_is_still_to_be_sent_does_not_wait_for_an_engine_that_went_away() -> None:
    scheduler = baseline("group_round_robin", engines=2)
    scheduler.submit(make_group("g", n=3))
    first = take(scheduler)
    scheduler.set_available(first.engine_id, False)
    rest = take_all(scheduler)
    assert [chunk.engine_id for chunk in rest] == ["e1", "e1"]


def test_without_an_engine_everything_waits() -> None:
    scheduler = baseline("group_round_robin", engines=2)
    for engine_id in ("e0", "e1"):
        scheduler.set_available(engine_id, False)
    scheduler.submit(make_group("g", n=2))
    assert not take_all(scheduler)
    scheduler.set_available("e1", True)
    assert engines_by_group(take_all(scheduler)) == {"g": {"e1"}}
