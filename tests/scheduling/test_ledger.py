"""The KV ledger never over-promises, counts a shared prompt once, and returns to zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.scheduling.ledger import KVLedger


def test_a_prompt_that_turns_out_longer_while_it_is_shared_leaves_nothing_reserved() -> None:
    ledger = KVLedger(capacity=1000)
    ledger.reserve("g", 100, 150)
    ledger.reserve("g", 140, 180)  # its images have 40 tokens more than was assumed
    assert ledger.used == 150 + 80
    ledger.release("g", 150)
    assert ledger.used == 180
    ledger.reserve("g", 140, 200)
    ledger.release("g", 200)
    ledger.release("g", 180)
    assert ledger.used == 0
    ledger.reserve("g", 140, 150)
    ledger.reserve("g", 140, 150)
    assert ledger.used == 150 + 10


def test_only_full_pages_of_the_prompt_are_shared() -> None:
    ledger = KVLedger(capacity=1000, page_size=16)
    ledger.reserve("g", 40, 50)
    assert ledger.used == 64  # 50 tokens are 4 pages
    ledger.reserve("g", 40, 50)
    assert ledger.used == 64 + 32  # 2 of the prompt's pages are full and shared


def test_room_is_left_for_the_drafts_of_every_chunk() -> None:
    ledger = KVLedger(capacity=100, draft_tokens=8)
    ledger.reserve("a", 10, 42)
    assert ledger.used == 50
    assert ledger.room == 42
    assert ledger.admits("b", 42)
    assert not ledger.admits("b", 43)
    ledger.release("a", 42)
    assert ledger.used == 0


def test_a_chunk_that_leaves_its_drafts_no_room_runs_alone() -> None:
    ledger = KVLedger(capacity=100, draft_tokens=8)
    assert ledger.room == 100
    ledger.reserve("a", 10, 95)
    assert ledger.used == 100
    assert not ledger.admits("a", 11)
    ledger.release("a", 95)
    ledger.reserve("b", 10, 20)
    assert not ledger.admits("a", 95)


def test_releasing_what_was_never_reserved_is_an_error() -> None:
    with pytest.raises(ValueError, match="no chunk of group g"):
        KVLedger(capacity=10).release("g", 2)


CHUNK = st.tuples(st.sampled_from("abcd"), st.integers(1, 200))
PROMPT_LEN = {"a": 1, "b": 16, "c": 33, "d": 90}


@given(
    capacity=st.integers(50, 1000),
    page_size=st.sampled_from([1, 16]),
    draft_tokens=st.sampled_from([0, 9]),
    steps=st.lists(st.one_of(CHUNK, st.integers(0, 30)), max_size=60),
)
def test_any_sequence_stays_within_capacity_and_ends_at_zero(
    capacity: int, page_size: int, draft_tokens: int, steps: list[tuple[str, int] | int]
) -> None:
    ledger = KVLedger(capacity, page_size, draft_tokens=draft_tokens)
    held: list[tuple[str, int, int]] = []
    for step in steps:
        if isinstance(step, int):  # release one reservation
            if held:
                released, _, total = held.pop(step % len(held))
                ledger.release(released, total)
        else:
            group, extra = step
            chunk = (group, PROMPT_LEN[group], PROMPT_LEN[group] + extra)
            if ledger.admits(group, chunk[2]):
                ledger.reserve(*chunk)
                held.append(chunk)
        assert 0 <= ledger.used <= capacity
        # Never less than the tokens that are needed if the prompt counts once.
        groups = {group for group, _, _ in held}
        needed = sum(PROMPT_LEN[g] // page_size * page_size for g in groups) + sum(
            total - prompt // page_size * page_size for _, prompt, total in held
        )
        if len(held) > 1:  # a chunk that runs alone needs no room for its drafts
            needed += draft_tokens * len(held)
        assert ledger.used >= needed
        if held and ledger.room > max(PROMPT_LEN.values()):
            assert ledger.admits("z", ledger.room)
        assert not ledger.admits("z", ledger.room + page_size)
    for released, _, total in held:
        ledger.release(released, total)
    assert ledger.used == 0
