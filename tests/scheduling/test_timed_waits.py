"""Requests that wait for their KV to be stored: the length and the end of the wait."""

import pytest

from seer_sgl.errors import EngineUnavailable
from seer_sgl.scheduling.attempts import Attempts
from seer_sgl.scheduling.engine_index import EngineIndex, EngineSlot
from seer_sgl.scheduling.placement import Placed, Wait
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.scheduling.timed_waits import TimedWaits
from seer_sgl.timing import DEFAULT
from seer_sgl.types import Chunk, ChunkResult, Group, Move
from tests.helpers import LEFT, make_group, make_reply
from tests.scheduling.chunks import submitted, take


def test_a_request_that_left_and_came_back_waits_until_its_new_time() -> None:
    waits = TimedWaits()
    first, second = make_group(n=2).requests
    waits.add(first, 1.0)
    waits.add(second, 2.0)
    assert waits.leave(first)
    assert not waits.leave(first)
    waits.add(first, 3.0)
    assert waits.next_due == 2.0
    assert list(waits.due(2.5)) == [second]
    assert waits.next_due == 3.0
    assert list(waits.due(3.0)) == [first]
    assert waits.next_due is None


class WaitsForKV:
    """Moves requests that have run once only with their KV, while they may wait for it."""

    def __init__(self) -> None:
        self.offers: list[tuple[int, bool]] = []  # (index, may_wait)

    def choose(self, attempts: Attempts, total_len: int, fleet: EngineIndex) -> Placed | Wait:
        request = attempts.request
        self.offers.append((request.index, attempts.may_wait))
        (engine,) = fleet
        if not engine.admits(request, request.total_len):
            return Wait.FOR_ROOM
        if request.engines and not attempts.stored and attempts.may_wait:
            return Wait.FOR_STORE
        return Placed(engine, Move.FETCH if attempts.stored else Move.STAY)


@pytest.fixture
def placement() -> WaitsForKV:
    return WaitsForKV()


@pytest.fixture
def scheduler(placement: WaitsForKV) -> Scheduler:
    scheduler = Scheduler(10, placement=placement)
    scheduler.add_engine(EngineSlot("e0", None, 10))
    return scheduler


def parked(
    scheduler: Scheduler, group_id: str = "g", *, n: int = 1, now: float = 50.0
) -> tuple[Group, Chunk]:
    """Returns a group whose first request waits after its first chunk, and that chunk."""
    group = submitted(scheduler, group_id, n=n)
    chunk = take(scheduler)
    scheduler.complete(ChunkResult(chunk=chunk, now=now, reply=make_reply(10)))
    others = [take(scheduler, now) for _ in range(n - 1)]
    assert [chunk.request.index for chunk in others] == list(range(1, n)), "the others continue"
    assert scheduler.next_assignment(now) is None
    return group, chunk


def test_a_request_that_waits_for_its_kv_lets_others_continue_and_moves_once_stored(
    scheduler: Scheduler,
) -> None:
    assert scheduler.wake_at is None
    group, chunk = parked(scheduler, n=3)
    assert scheduler.stored(chunk.rid, True) is group.requests[0]
    assert scheduler.wake_at is None
    moved = take(scheduler, 50.0)
    assert (moved.request.index, moved.move) == (0, Move.FETCH)
    assert scheduler.next_assignment(50.0) is None


def test_an_acknowledgement_before_the_reply_spares_the_wait(scheduler: Scheduler) -> None:
    scheduler.submit(make_group(n=1))
    chunk = take(scheduler)
    scheduler.stored(chunk.rid, True)
    scheduler.complete(ChunkResult(chunk=chunk, now=1.0, reply=make_reply(10)))
    chunk = take(scheduler)
    assert chunk.move is Move.FETCH
    scheduler.complete(ChunkResult(chunk=chunk, now=2.0, reply=make_reply(10)))
    assert scheduler.next_assignment(2.0) is None, "the next chunk is to be stored anew"


def test_a_request_waits_so_long_and_is_then_offered_as_impatient(
    scheduler: Scheduler, placement: WaitsForKV
) -> None:
    parked(scheduler, now=50.0)
    assert scheduler.wake_at == 50.0 + DEFAULT.store_patience_s
    offers = len(placement.offers)
    assert scheduler.next_assignment(50.0 + DEFAULT.store_patience_s - 0.001) is None
    assert len(placement.offers) == offers, "nobody asks before"
    chunk = take(scheduler, 50.0 + DEFAULT.store_patience_s)
    assert placement.offers[-1] == (0, False)
    assert scheduler.wake_at is None
    scheduler.complete(ChunkResult(chunk=chunk, now=60.0, reply=make_reply(10)))
    chunk = take(scheduler, 60.0)
    assert placement.offers[-1] == (0, False), "its KV has a hole that may well stay"
    scheduler.stored(chunk.rid, True)
    scheduler.complete(ChunkResult(chunk=chunk, now=61.0, reply=make_reply(10)))
    take(scheduler, 61.0)
    assert placement.offers[-1] == (0, True), "may_wait again after an acknowledgement"


def test_a_late_acknowledgement_makes_the_request_patient_again(
    scheduler: Scheduler, placement: WaitsForKV
) -> None:
    _, late = parked(scheduler, now=50.0)
    chunk = take(scheduler, 50.0 + DEFAULT.store_patience_s)
    assert placement.offers[-1] == (0, False)
    assert scheduler.stored(late.rid, True) is None, "the newest chunk is another one"
    scheduler.complete(ChunkResult(chunk=chunk, now=60.0, reply=make_reply(10)))
    assert scheduler.next_assignment(60.0) is None
    assert placement.offers[-1] == (0, True)


def test_an_impatient_request_stays_so_until_it_is_admitted(
    scheduler: Scheduler, placement: WaitsForKV
) -> None:
    parked(scheduler, now=50.0)
    (engine,) = scheduler.engines
    engine.max_inflight = 0
    assert scheduler.next_assignment(52.0) is None
    assert scheduler.wake_at is None, "it is ready: what it lacks is room"
    engine.max_inflight = 1
    take(scheduler, 53.0)
    assert placement.offers[-2:] == [(0, False), (0, False)]


def test_kv_that_will_never_be_whole_is_not_waited_for_any_longer(
    scheduler: Scheduler, placement: WaitsForKV
) -> None:
    _, chunk = parked(scheduler, now=50.0)
    scheduler.stored(chunk.rid, False)
    assert take(scheduler, 50.0).move is Move.STAY
    assert placement.offers[-1] == (0, False)


@pytest.mark.parametrize("waits", [True, False])
def test_kv_of_older_weights_is_not_waited_for(
    scheduler: Scheduler, placement: WaitsForKV, waits: bool
) -> None:
    group = submitted(scheduler, n=1)
    chunk = take(scheduler)
    scheduler.complete(ChunkResult(chunk=chunk, now=50.0, reply=make_reply(10)))
    if waits:
        assert scheduler.next_assignment(50.0) is None
    scheduler.forget_kv()
    assert scheduler.stored(chunk.rid, True) is None
    chunk = take(scheduler, 50.0)
    assert chunk.move is Move.STAY
    scheduler.complete(ChunkResult(chunk=chunk, now=60.0, reply=make_reply(10)))
    assert scheduler.next_assignment(60.0) is None
    assert placement.offers[-1] == (0, True), "the new weights' KV is worth a wait"
    assert scheduler.stored(chunk.rid, True) is group.requests[0]


def test_the_chunk_in_flight_is_still_acknowledged_after_new_weights(scheduler: Scheduler) -> None:
    group = submitted(scheduler, n=1)
    chunk = take(scheduler)
    scheduler.forget_kv()
    assert scheduler.stored(chunk.rid, True) is group.requests[0]


def test_acknowledgements_of_older_chunks_and_of_strangers_change_nothing(
    scheduler: Scheduler,
) -> None:
    group = submitted(scheduler, n=1)
    older = take(scheduler)
    scheduler.complete(ChunkResult(chunk=older, now=1.0, error=EngineUnavailable("reset")))
    newer = take(scheduler)
    scheduler.complete(ChunkResult(chunk=newer, now=2.0, reply=make_reply(10)))
    assert scheduler.next_assignment(2.0) is None
    for rid in (older.rid, "someone.c1/", "", "/"):
        assert scheduler.stored(rid, True) is None
    assert scheduler.next_assignment(2.0) is None
    assert scheduler.wake_at == 2.0 + DEFAULT.store_patience_s
    assert scheduler.stored(newer.rid, True) is group.requests[0]


def test_a_second_acknowledgement_does_not_send_a_request_twice(scheduler: Scheduler) -> None:
    _, chunk = parked(scheduler)
    scheduler.stored(chunk.rid, True)
    scheduler.stored(chunk.rid, True)
    take(scheduler)
    assert scheduler.next_assignment(0.0) is None


def test_a_withdrawn_groups_waiting_request_is_forgotten(scheduler: Scheduler) -> None:
    group, chunk = parked(scheduler)
    scheduler.withdraw(group, LEFT)
    assert scheduler.wake_at is None
    assert scheduler.stored(chunk.rid, True) is None
    assert scheduler.next_assignment(99.0) is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_request_that_follows_another_one_fetches_what_that_one_has_stored(
    scheduler: Scheduler, kept: bool
) -> None:
    group = make_group(n=2)
    first, second = group.requests.copy()
    group.requests, group.growing = [first], True
    first.retain_kv = kept
    scheduler.submit(group)
    chunk = take(scheduler)
    scheduler.complete(ChunkResult(chunk=chunk, now=1.0, reply=make_reply(3, "stop")))
    assert (scheduler.stored(chunk.rid, True) is first) is kept
    second.preferred_engine, second.follows = "e0", first.uid
    scheduler.grow(group, [second])
    assert take(scheduler, 1.0).move is (Move.FETCH if kept else Move.STAY)
    scheduler.withdraw(group, LEFT)
