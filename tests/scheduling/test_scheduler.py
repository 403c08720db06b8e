"""The scheduler: order, placement, division; every request ends exactly once."""

import pytest

from seer_sgl.driver.flights import result_of
from seer_sgl.engine_types import EngineLoad
from seer_sgl.errors import (
    ChunkAborted,
    ChunkRecalled,
    EngineDied,
    EngineUnavailable,
    RequestRejected,
)
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.scheduling.scheduler import OVERTAKEN, REFUSED_PAUSE_S, Scheduler
from seer_sgl.scheduling.setbacks import (
    MAX_CONSECUTIVE_ABORTS,
    MAX_CONSECUTIVE_FAILURES,
    MAX_REFUSED_GROUPS,
)
from seer_sgl.types import Chunk, ChunkReply, ChunkResult, FinishReason
from tests.helpers import LEFT, UNDIVIDABLE, make_group, make_reply, why_given_up
from tests.scheduling.chunks import submitted, take


def one_engine(chunk_tokens: int = 30, capacity: int = 1000, max_inflight: int = 10) -> Scheduler:
    scheduler = Scheduler(chunk_tokens)
    scheduler.add_engine(EngineSlot("e0", KVLedger(capacity), max_inflight))
    return scheduler


def engines(
    count: int, chunk_tokens: int = 30, *, max_inflight: int = 10, patience_s: float = 5.0
) -> Scheduler:
    """Returns a scheduler with engines e0, e1, ... without ledgers."""
    scheduler = Scheduler(chunk_tokens, patience_s=patience_s)
    for i in range(count):
        scheduler.add_engine(EngineSlot(f"e{i}", None, max_inflight))
    return scheduler


def returned(scheduler: Scheduler, chunk: Chunk, reply: ChunkReply) -> None:
    scheduler.complete(result_of(chunk, reply, 1.0))


def failed(scheduler: Scheduler, chunk: Chunk, error: Exception) -> None:
    scheduler.complete(ChunkResult(chunk=chunk, now=1.0, error=error))


def test_a_request_is_sent_in_chunks_and_the_last_one_is_shorter() -> None:
    scheduler = one_engine(chunk_tokens=40)
    group = submitted(scheduler, n=1, max_response_len=100)
    budgets = []
    for _ in range(3):
        chunk = take(scheduler)
        assert scheduler.next_assignment(0.0) is None, "one chunk of a request at a time"
        budgets.append(chunk.max_new_tokens)
        returned(scheduler, chunk, make_reply(chunk.max_new_tokens))
    assert budgets == [40, 40, 20]
    assert group.complete
    assert group.requests[0].finish_reason == "length"
    assert scheduler.next_assignment(0.0) is None


def test_requests_go_first_come_first_served_and_keep_their_place() -> None:
    scheduler = one_engine(max_inflight=2)
    submitted(scheduler, n=4)
    first, second = take(scheduler), take(scheduler)
    assert [first.request.index, second.request.index] == [0, 1]
    returned(scheduler, first, make_reply(30))
    assert take(scheduler).request.index == 0, "a request between chunks is older than index 2"


def test_a_chunk_elsewhere_counts_as_a_migration() -> None:
    scheduler = engines(2, 20)
    scheduler.submit(make_group(n=1))
    for _ in range(2):
        chunk = take(scheduler)
        assert (chunk.engine_id, chunk.migrated) == ("e0", False)
        returned(scheduler, chunk, make_reply(20))
    scheduler.set_available("e0", False)
    chunk = take(scheduler)
    assert (chunk.engine_id, chunk.migrated) == ("e1", True)


def test_no_more_is_sent_than_all_engines_together_may_have() -> None:
    scheduler = Scheduler(20, max_inflight=3)
    for engine_id in ("a", "b"):
        scheduler.add_engine(EngineSlot(engine_id, None, 10))
    scheduler.submit(make_group(n=6))
    first, *_ = [take(scheduler) for _ in range(3)]
    assert scheduler.next_assignment(0.0) is None
    failed(scheduler, first, EngineUnavailable("gone"))
    take(scheduler)
    assert scheduler.next_assignment(0.0) is None


@pytest.mark.parametrize("unfinished", [make_reply(40, "abort"), make_reply(99, "length")])
def test_a_request_that_cannot_be_continued_keeps_nothing_and_begins_again(
    unfinished: ChunkReply,
) -> None:
    scheduler = engines(1)
    group = make_group(n=1, max_response_len=100, sampling=UNDIVIDABLE)
    request = group.requests[0]
    seed = request.seed
    scheduler.submit(group)
    unfinished.verify_steps = 7
    first = take(scheduler)
    returned(scheduler, first, unfinished)
    assert (request.generated, len(request.logprobs), request.verify_steps) == (0, 0, 0)
    assert (request.weight_spans, request.engines) == ([], [])
    error = result_of(first, unfinished, 1.0).error
    assert isinstance(error, ChunkAborted) is (unfinished.finish == "abort")
    second = take(scheduler)
    assert (second.max_new_tokens, request.seed) == (first.max_new_tokens, seed) == (100, seed)
    assert second.rid != first.rid
    assert first.rid.endswith("/")
    returned(scheduler, second, make_reply(60, "stop", first=7))
    assert list(request.response_ids) == list(range(7, 67))
    assert group.complete


def test_a_request_that_is_aborted_whenever_it_begins_again_gives_its_group_up() -> None:
    scheduler = engines(1, patience_s=0.0)
    group = submitted(scheduler, n=1, max_response_len=100, sampling=UNDIVIDABLE)
    for _ in range(MAX_CONSECUTIVE_ABORTS):
        assert why_given_up(group) is None
        returned(scheduler, take(scheduler), make_reply(40, "abort"))
    assert "cannot be continued ended (abort) after 40 of 100 tokens" in (why_given_up(group) or "")


@pytest.mark.parametrize("finish", ["abort", "length"])
def test_a_chunk_that_ends_early_shortens_no_response(finish: FinishReason) -> None:
    scheduler = one_engine()
    group = submitted(scheduler, n=1, max_response_len=30)
    returned(scheduler, take(scheduler), make_reply(12, finish))
    assert group.requests[0].finish_reason is None
    chunk = take(scheduler)
    assert chunk.max_new_tokens == 18
    returned(scheduler, chunk, make_reply(18, finish, first=13))
    assert list(group.requests[0].response_ids) == list(range(1, 31))
    assert group.requests[0].finish_reason == "length", "all tokens are there"
    assert scheduler.check() == []


def test_groups_of_equal_ids_do_not_share_a_prompt() -> None:
    scheduler = one_engine()
    (slot,) = scheduler.engines
    assert slot.ledger is not None
    earlier, later = make_group("g", n=1, prompt_len=10), make_group("g", n=1, prompt_len=70)
    earlier.uid, later.uid = "first/g", "second/g"
    later.requests[0].uid = "second/g.0"
    scheduler.submit(earlier)
    scheduler.submit(later)
    chunks = [take(scheduler), take(scheduler)]
    assert slot.ledger.used == 10 + 30 + 70 + 30
    for chunk in chunks:
        returned(scheduler, chunk, make_reply(1, "stop"))
    assert slot.ledger.used == 0


def test_a_request_that_is_taken_back_again_and_again_is_not_given_up() -> None:
    scheduler = engines(1, patience_s=0.0)
    scheduler.submit(make_group(n=1))
    for _ in range(200):
        failed(scheduler, take(scheduler), ChunkRecalled("KV was not read from the pool"))
    take(scheduler)
    assert scheduler.available("e0")


def test_the_refusal_of_the_only_engine_gives_the_group_up_at_once() -> None:
    scheduler = one_engine()
    group = submitted(scheduler, n=2)
    failed(scheduler, take(scheduler), RequestRejected("HTTP 400: too long"))
    assert group.withdrawn
    assert why_given_up(group) == "HTTP 400: too long"
    assert scheduler.next_assignment(0.0) is None


def test_a_chunk_is_overtaken_by_those_sent_later_that_came_back_before_it() -> None:
    scheduler = one_engine()
    scheduler.submit(make_group(n=3, max_response_len=1000))
    oldest, *others = (take(scheduler) for _ in range(3))
    for back in range(OVERTAKEN + 3):
        assert scheduler.overtaken(oldest) is (back >= OVERTAKEN)
        returned(scheduler, others.pop(0), make_reply(30))
        others.append(take(scheduler))
    assert not scheduler.overtaken(others[0])


def test_what_only_a_full_engine_may_take_holds_nobody_else_up() -> None:
    scheduler = engines(2, 10, max_inflight=1)
    scheduler.submit(make_group("refused", n=1))
    scheduler.submit(make_group("long", n=1))
    scheduler.submit(make_group("next", n=1))
    refused, other = take(scheduler), take(scheduler)
    failed(scheduler, refused, RequestRejected("HTTP 400"))
    chunk = take(scheduler, 1.0)
    assert (chunk.request.group.uid, chunk.engine_id) == ("next", refused.engine_id)
    assert scheduler.wake_at == 1.0 + REFUSED_PAUSE_S
    assert "requests are left waiting" in scheduler.check()
    returned(scheduler, other, make_reply(10))
    again = take(scheduler, 1.0 + REFUSED_PAUSE_S)
    assert (again.request, again.engine_id) == (refused.request, other.engine_id)


def test_a_refused_request_keeps_its_turn_while_other_engines_are_never_empty() -> None:
    scheduler = engines(2, 10, max_inflight=1)
    for name in ("refused", "long", "next", "then", "last"):
        scheduler.submit(make_group(name, n=1, max_response_len=1000))
    refused, other = take(scheduler), take(scheduler)
    failed(scheduler, refused, RequestRejected("HTTP 400"))
    beside = take(scheduler, 1.0)
    assert (beside.request.group.uid, beside.engine_id) == ("next", refused.engine_id)
    returned(scheduler, beside, make_reply(10))
    again = take(scheduler, 1.0)
    assert (again.request.group.uid, again.engine_id) == ("next", refused.engine_id)
    returned(scheduler, other, make_reply(10))
    chunk = take(scheduler, 1.0)
    assert (chunk.request, chunk.engine_id) == (refused.request, other.engine_id)


def test_a_refused_request_without_another_engine_is_given_up_when_patience_ends() -> None:
    scheduler = engines(2)
    scheduler.set_available("e1", False)
    group = submitted(scheduler, n=1)
    now = 1.0
    for attempt in range(MAX_CONSECUTIVE_FAILURES):
        assert why_given_up(group) is None
        chunk = take(scheduler, now)
        assert chunk.engine_id == "e0"
        error = RequestRejected(f"HTTP 400, time {attempt}")
        scheduler.complete(ChunkResult(chunk=chunk, now=now, error=error))
        assert scheduler.next_assignment(now) is None, "not at once"
        if why_given_up(group) is None:
            assert scheduler.wake_at == now + REFUSED_PAUSE_S
        now += REFUSED_PAUSE_S
        scheduler.elapsed(5.0 / (MAX_CONSECUTIVE_FAILURES - 1))
    assert why_given_up(group) == "5 chunks in a row failed; last error: HTTP 400, time 4"
    assert scheduler.wake_at is None


def test_an_engine_that_refuses_one_group_after_another_is_out() -> None:
    scheduler = engines(2)
    bad, good = scheduler.engines
    groups = [make_group(f"g{i}", n=1) for i in range(2 * MAX_REFUSED_GROUPS)]
    for group in groups:
        scheduler.submit(group)
    chunks = [take(scheduler) for _ in groups]
    refused = [chunk for chunk in chunks if chunk.engine_id == bad.engine_id]
    assert len(refused) == MAX_REFUSED_GROUPS
    for chunk in refused:
        assert bad.available
        failed(scheduler, chunk, RequestRejected("HTTP 400"))
    assert not bad.available
    for chunk in chunks:
        if chunk.engine_id == good.engine_id:
            returned(scheduler, chunk, make_reply(10, "stop"))
    for _ in refused:
        chunk = take(scheduler)
        assert chunk.engine_id == good.engine_id
        returned(scheduler, chunk, make_reply(10, "stop"))
    assert all(group.complete for group in groups)


def test_groups_that_two_engines_refuse_are_held_against_no_engine() -> None:
    scheduler = engines(2)
    groups = [make_group(f"g{i}", n=1) for i in range(2 * MAX_REFUSED_GROUPS)]
    for group in groups:
        scheduler.submit(group)
        for _ in range(2):
            failed(scheduler, take(scheduler), RequestRejected("HTTP 400: too long"))
    assert all(group.withdrawn for group in groups)
    assert all(slot.available for slot in scheduler.engines)


def test_failures_on_one_engine_alone_give_no_group_up_while_another_one_is_there() -> None:
    scheduler = engines(2, max_inflight=1)
    mine, long = make_group("mine", n=1), make_group("long", n=1)
    scheduler.submit(mine)
    scheduler.submit(long)
    chunk, _ = take(scheduler), take(scheduler)
    for _ in range(2 * MAX_CONSECUTIVE_FAILURES):
        assert chunk.engine_id == "e0"
        failed(scheduler, chunk, EngineUnavailable("HTTP 405"))
        scheduler.elapsed(5.0)
        assert mine.failure is None
        chunk = take(scheduler)
    scheduler.set_available("e1", False)
    failed(scheduler, chunk, EngineUnavailable("HTTP 405"))
    assert mine.failure is not None


def test_a_request_that_only_fails_gives_its_group_up_and_progress_forgives() -> None:
    scheduler = engines(1, 10, patience_s=0.0)
    group = submitted(scheduler, n=1)
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        failed(scheduler, take(scheduler), EngineUnavailable("reset"))
    returned(scheduler, take(scheduler), make_reply(10))
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        failed(scheduler, take(scheduler), EngineUnavailable("reset"))
    assert why_given_up(group) is None
    failed(scheduler, take(scheduler), EngineUnavailable("the last reset"))
    assert "the last reset" in (why_given_up(group) or "")


def test_an_outage_shorter_than_our_patience_costs_no_group() -> None:
    scheduler = engines(1, 10)
    group = submitted(scheduler, n=1)
    for _ in range(6):
        failed(scheduler, take(scheduler), EngineUnavailable("503"))
        assert why_given_up(group) is None
        scheduler.elapsed(0.9)
    failed(scheduler, take(scheduler), EngineUnavailable("503"))
    assert why_given_up(group) == "7 chunks in a row failed; last error: 503"


def test_time_in_which_the_driver_was_stopped_is_no_outage() -> None:
    scheduler = engines(1, 10)
    group = submitted(scheduler, n=1)
    for now in (1.0, *(1000.0,) * (2 * MAX_CONSECUTIVE_FAILURES)):
        chunk = take(scheduler)
        scheduler.complete(ChunkResult(chunk=chunk, now=now, error=EngineUnavailable("503")))
    assert why_given_up(group) is None


def test_aborts_before_the_first_token_are_no_failures_of_the_request() -> None:
    scheduler = one_engine()
    group = submitted(scheduler, n=1)
    for attempt in range(2 * MAX_CONSECUTIVE_ABORTS - 1):
        chunk = take(scheduler)
        if attempt == MAX_CONSECUTIVE_ABORTS - 1:
            returned(
                scheduler, chunk, make_reply(1, "abort")
            )  # one token, and the request restarts
            continue
        scheduler.elapsed(1000.0)
        scheduler.complete(ChunkResult(chunk=chunk, now=0.0, reply=make_reply(0, "abort")))
        assert why_given_up(group) is None
    chunk = take(scheduler)
    scheduler.complete(ChunkResult(chunk=chunk, now=0.0, reply=make_reply(0, "abort")))
    lost = f"{MAX_CONSECUTIVE_ABORTS} chunks in a row failed"
    assert (
        why_given_up(group)
        == f"{lost}; last error: the engine aborted the chunk before its first token"
    )


@pytest.mark.parametrize("total", [10, 100])
def test_a_group_counts_its_prompt_once_on_each_engine(total: int) -> None:
    scheduler = Scheduler(total)
    scheduler.add_engine(EngineSlot("a", KVLedger(10_000), 10))
    scheduler.add_engine(EngineSlot("b", KVLedger(10_000), 10))
    scheduler.submit(make_group(n=4, prompt_len=50))
    for _ in range(4):
        take(scheduler)
    for slot in scheduler.engines:
        assert slot.ledger is not None
        assert slot.ledger.used == 50 + 2 * total


def load(used_tokens: int) -> EngineLoad:
    return EngineLoad(used_tokens=used_tokens, progress=())


def test_room_that_strangers_take_is_not_promised_until_they_leave() -> None:
    scheduler = one_engine(chunk_tokens=40, capacity=200)
    assert not scheduler.loaded("e0", load(200))
    scheduler.submit(make_group(n=4))
    take(scheduler)  # the first chunk starts regardless of the engine's report
    assert scheduler.next_assignment(0.0) is None
    while scheduler.next_assignment(0.0) is None:
        assert scheduler.loaded("e0", load(50)), "there is more room: worth another look"
    assert not scheduler.loaded("e0", load(200))


@pytest.mark.parametrize("retractions", [0, 1])
def test_a_retracted_chunk_makes_its_engine_take_less(retractions: int) -> None:
    scheduler = one_engine(chunk_tokens=40, capacity=170)  # prompt 10 + 4 x 40
    scheduler.submit(make_group(n=5))
    chunks = [take(scheduler) for _ in range(4)]
    reply = make_reply(40, "stop")
    reply.retractions = retractions
    returned(scheduler, chunks[0], reply)
    # 7/8 of 170 leave no room for a fourth chunk beside three.
    assert (scheduler.next_assignment(0.0) is None) is bool(retractions)


def test_an_idle_schedulers_books_are_empty_and_what_is_left_is_named() -> None:
    scheduler = one_engine()
    assert scheduler.check() == []
    group = submitted(scheduler, "left", n=2)
    chunk = take(scheduler)
    breaches = scheduler.check()
    assert [line for line in breaches if "has 1 chunks in flight" in line]
    assert [line for line in breaches if "KV tokens of e0 are promised" in line]
    assert [line for line in breaches if "2 requests are left, such as left.0" in line]
    assert "1 callers are left" in breaches
    assert "requests are left waiting" not in breaches
    died = EngineDied("it was killed", engine_id="e0")
    scheduler.complete(ChunkResult(chunk=chunk, now=0.0, error=died))
    assert f"suspects are left, such as {chunk.request.uid}" in scheduler.check()
    scheduler.withdraw(group, LEFT)
    assert scheduler.check() == []


def test_the_caller_with_the_fewest_chunks_in_flight_goes_next() -> None:
    scheduler = one_engine(capacity=10_000, max_inflight=6)
    first, second = make_group("first", n=6), make_group("second", n=6)
    first.caller, second.caller = "a", "b"
    scheduler.submit(first)
    chunks = [take(scheduler) for _ in range(4)]
    scheduler.submit(second)
    chunks += [take(scheduler) for _ in range(2)]
    assert [chunk.request.group.caller for chunk in chunks] == [*"aaaabb"]
    order = []
    for chunk in chunks:
        returned(scheduler, chunk, make_reply(5, "stop"))
        order.append(take(scheduler).request.group.caller)
    assert order[0] == "b"
    assert abs(order.count("a") - order.count("b")) <= 2


def test_of_callers_that_were_never_served_the_first_to_come_goes_first() -> None:
    scheduler = one_engine(capacity=10_000, max_inflight=6)
    for caller in "cab":
        group = make_group(caller, n=1)
        group.caller = caller
        scheduler.submit(group)
    assert [take(scheduler).request.group.caller for _ in range(3)] == [*"cab"]


def test_a_preferred_group_goes_before_the_other_groups_of_its_caller_only() -> None:
    scheduler = one_engine(capacity=10_000, max_inflight=2)
    first, preferred, other = (make_group(name, n=4) for name in ("first", "preferred", "other"))
    other.caller = "another"
    for group in (first, preferred, other):
        scheduler.submit(group)
    chunks = [take(scheduler), take(scheduler)]
    scheduler.prefer(preferred)
    order = [chunk.request.group.group_id for chunk in chunks]
    while chunks:
        returned(scheduler, chunks.pop(0), make_reply(5, "stop"))
        chunk = scheduler.next_assignment(0.0)
        if chunk is not None:
            chunks.append(chunk)
            order.append(chunk.request.group.group_id)
    assert [name for name in order if name != "other"] == [
        *["first", *["preferred"] * 4],
        *["first"] * 3,
    ]
    assert order[:8].count("other") == 4, "the other caller has its share"


def test_a_preferred_group_with_chunks_in_flight_stays_ahead_between_its_chunks() -> None:
    scheduler = one_engine(chunk_tokens=10, max_inflight=1)
    first, preferred = make_group("first", n=1), make_group("preferred", n=1)
    scheduler.submit(preferred)
    chunk = take(scheduler)
    scheduler.prefer(preferred)
    scheduler.prefer(preferred)
    scheduler.submit(first)
    for _ in range(3):
        returned(scheduler, chunk, make_reply(10))
        chunk = take(scheduler)
        assert chunk.request.group is preferred
    scheduler.withdraw(preferred, LEFT)
    returned(scheduler, chunk, make_reply(10))
    assert take(scheduler).request.group is first
