"""The size of a chunk: full while there is work for everybody, shorter in the tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.scheduling.chunks import SMALLEST, tail_chunk
from seer_sgl.scheduling.fleet import EngineSlot
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import ChunkResult
from tests.helpers import make_group, make_reply


@pytest.mark.parametrize(
    ("unfinished", "budget"), [(1000, 800), (100, 800), (50, 400), (13, 104), (12, 100), (1, 100)]
)
def test_it_shrinks_with_the_work_that_is_left_down_to_an_eighth(
    unfinished: int, budget: int
) -> None:
    assert tail_chunk(800, unfinished, 100) == budget


@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(0, 10**5))
def test_it_never_grows_and_never_vanishes(chunk: int, unfinished: int, slots: int) -> None:
    budget = tail_chunk(chunk, unfinished, slots)
    assert max(1, int(SMALLEST * chunk)) <= budget <= chunk
    assert budget <= tail_chunk(chunk, unfinished + 1, slots)


def test_the_scheduler_measures_the_fleet_by_the_most_it_has_run() -> None:
    scheduler = Scheduler(80, adaptive_chunk=True)
    scheduler.add_engine(EngineSlot("e", None, 4))
    scheduler.submit(make_group(n=6, max_response_len=1000))
    chunks = [scheduler.next_assignment(0.0) for _ in range(4)]
    budgets = []
    for chunk in chunks:
        assert chunk is not None
        budgets.append(chunk.max_new_tokens)
        scheduler.complete(ChunkResult(chunk=chunk, now=1.0, reply=make_reply(1, "stop")))
    last = [scheduler.next_assignment(0.0) for _ in range(2)]
    assert budgets == [80] * 4
    assert [chunk.max_new_tokens for chunk in last if chunk] == [40, 40], "2 left for 4 slots"
    for chunk in last:
        assert chunk is not None
        scheduler.complete(ChunkResult(chunk=chunk, now=1.0, reply=make_reply(1, "stop")))
    scheduler.submit(make_group("later", n=1, max_response_len=1000))
    chunk = scheduler.next_assignment(0.0)
    assert chunk is not None
    assert chunk.max_new_tokens == 80, "the next rollout is measured by itself"
