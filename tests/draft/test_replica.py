"""The replica keeps the index correct and everything within its limits."""

import itertools
from array import array
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft import group_store
from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.group_store import SEQUENCES
from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import (
    FRAME_BYTES,
    MAX_NAME,
    MAX_SEQUENCES,
    Delta,
    Deltas,
    Done,
    Leave,
    Open,
    Want,
    wire_name,
)
from seer_sgl.draft.replica import DRAIN_TOKENS, IDLE_S, RESYNC_S, Replica, Scope
from seer_sgl.link.contract import INDEX_BYTES
from tests.draft.replicas import PLENTY, PROMPT, Engine, delta, tokens_of


def test_what_is_decoded_here_is_sent_in_one_message_a_flush(engine: Engine) -> None:
    first = engine.replica.begin("g", 0, PROMPT, [])
    second = engine.replica.begin("g", 1, PROMPT, [])
    assert engine.pass_time() == [Open({"g": {0: 0, 1: 0}})]
    engine.decode(first, 5)
    engine.decode(second, 6, 7)
    engine.replica.drain(engine.now + 0.01)
    assert not engine.sent, "not at every step"
    engine.decode(first, 8)
    assert engine.pass_time() == [Deltas([delta("g", 0, 0, 5, 8), delta("g", 1, 0, 6, 7)])]
    assert engine.pass_time() == []
    assert engine.drafter.prompts == {"g": PROMPT}


def test_what_others_decoded_goes_into_the_index(engine: Engine) -> None:
    slot = engine.replica.begin("g", 0, PROMPT, [9])
    sibling = engine.replica.begin("g", 2, PROMPT, [4])
    engine.receive(Deltas([delta("g", 1, 0, 5, 6), delta("unknown", 0, 0, 1)]))
    engine.receive(Deltas([delta("g", 1, 1, 6, 7), delta("g", 1, 0, 5)]))
    assert engine.index() == [[4], [5, 6, 7], [9]]
    sources = [engine.replica.source(slot, i) for i in (-1, 0, 1, 2)]
    assert sources == ["prompt", "own", "here", "elsewhere"]
    assert engine.replica.source(sibling, 0) == "here"
    engine.pass_time()
    assert engine.pass_time() == [], "and is not sent back"


def test_a_call_continues_where_the_last_one_ended(engine: Engine) -> None:
    slot = engine.replica.begin("g", 3, PROMPT, [])
    engine.decode(slot, 5, 6)
    engine.replica.end(slot)
    slot = engine.replica.begin("g", 3, PROMPT, [5, 6])
    engine.decode(slot, 7)
    engine.replica.end(slot)
    slot = engine.replica.begin("g", 3, PROMPT, [5, 6, 7, 8])  # 8 came on another engine
    engine.decode(slot, 9)
    assert engine.index() == [[5, 6, 7, 8, 9]]
    deltas, opening = engine.pass_time()
    assert deltas == Deltas([delta("g", 3, 0, 5, 6, 7, 8, 9)])
    assert opening == Open({"g": {3: 5}})


def test_tokens_of_another_engine_are_not_sent_again_when_the_call_comes_back(
    engine: Engine,
) -> None:
    slot = engine.replica.begin("g", 3, PROMPT, [])
    engine.decode(slot, 5, 6)
    engine.pass_time()
    engine.replica.end(slot)
    slot = engine.replica.begin("g", 3, PROMPT, [5, 6, 7, 8])  # the others have 7 and 8 already
    engine.decode(slot, 9)
    assert engine.pass_time() == [Deltas([delta("g", 3, 4, 9)])]
    assert engine.index() == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize("response", [[5], [5, 9], [5, 9, 9, 9]])
def test_a_call_that_went_another_way_is_a_sequence_of_its_own(
    engine: Engine, response: list[int]
) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    engine.receive(Deltas([delta("g", 3, 0, 5, 6, 7)]))
    engine.pass_time()
    slot = engine.replica.begin("g", 3, PROMPT, response)
    engine.decode(slot, 8)
    assert engine.index() == sorted([[], [5, 6, 7], [*response, 8]])
    sent = engine.pass_time()[0]
    assert isinstance(sent, Deltas)
    assert [array("i", part.tokens).tolist() for part in sent.deltas] == [[*response, 8]]
    number = sent.deltas[0].sequence
    assert number != 3
    assert number % SEQUENCES == 3
    engine.replica.end(slot)
    slot = engine.replica.begin("g", 3, PROMPT, [*response, 8])
    engine.decode(slot, 1)
    assert engine.pass_time() == [Deltas([delta("g", number, len(response) + 1, 1)])]


def test_a_running_call_is_not_touched_by_what_a_lost_engine_had_gone_further(
    engine: Engine,
) -> None:
    slot = engine.replica.begin("g", 3, PROMPT, [5])
    engine.decode(slot, 6)
    engine.pass_time()
    engine.receive(Deltas([delta("g", 3, 1, 7, 8)]))
    engine.decode(slot, 9)
    assert engine.drafter.groups["g"][0] == [5, 6, 9]
    deltas = engine.pass_time(1.0)[0]
    assert isinstance(deltas, Deltas)
    assert deltas.deltas[0].tokens == array("i", [5, 6, 9]).tobytes()
    assert deltas.deltas[0].sequence % SEQUENCES == 3
    engine.receive(Deltas([delta("g", 3, 0, 5, 7, 8)]))
    assert engine.index() == [[5, 6, 9], [5, 7, 8]]


def test_a_turn_continues_the_tokens_of_the_turn_before_it() -> None:
    """Each turn is a request of its own, whose response begins with all turns before it."""
    engine, hub = Engine(), Hub(PLENTY)
    text = list[int]()
    for turn in range(10):
        slot = engine.replica.begin("g", turn, PROMPT, text)
        answer = range(1000 * turn, 1000 * turn + 100)
        engine.decode(slot, *answer)
        engine.replica.end(slot)
        for _ in range(3):
            for message in engine.pass_time(1.0):
                hub.receive("a", message)
            while (reply := hub.take("a")) is not None:
                engine.receive(reply)
        text = [*text, *answer, 7, 8, 9]  # from a tool
    assert engine.index() == [text[:-3]]
    assert tokens_of(hub, "g") == {0: text[:-3]}
    engine.check()


def test_two_continuations_of_one_turn_at_once_do_not_mix() -> None:
    engine, turn = Engine(), list(range(100))
    engine.replica.end(engine.replica.begin("g", 0, PROMPT, turn))
    slots = [engine.replica.begin("g", sample, PROMPT, turn) for sample in (1, 2)]
    engine.decode(slots[0], 6)
    engine.decode(slots[1], 7)
    assert engine.index() == [[*turn, 6], [*turn, 7]]
    engine.check()


def test_a_response_that_begins_like_a_short_sibling_leaves_it_alone(engine: Engine) -> None:
    engine.replica.begin("g", 9, PROMPT, [])
    engine.receive(Deltas([delta("g", 0, 0, 5, 6)]))
    engine.decode(engine.replica.begin("g", 1, PROMPT, [5, 6, 7]), 8)
    assert engine.index() == [[], [5, 6], [5, 6, 7, 8]]


def test_two_calls_of_one_sequence_at_once_do_not_mix(engine: Engine) -> None:
    slots = [engine.replica.begin("g", -1, PROMPT, [5]) for _ in range(2)]
    engine.decode(slots[0], 6)
    engine.decode(slots[1], 7)
    assert engine.index() == [[5, 6], [5, 7]]


def test_a_group_is_left_when_it_was_idle_and_joined_again_when_it_is_not(engine: Engine) -> None:
    slot = engine.replica.begin("g", 0, PROMPT, [5])
    engine.pass_time()
    engine.replica.end(slot)
    sent = list(itertools.chain(*(engine.pass_time(1.0) for _ in range(int(IDLE_S) + 2))))
    assert sent[-1] == Leave(["g"])
    assert [type(message) for message in sent].count(Leave) == 1
    assert engine.pass_time(RESYNC_S) == []
    assert engine.index() == [[5]], "siblings may come back"
    engine.replica.begin("g", 1, PROMPT, [])
    assert engine.pass_time() == [Open({"g": {0: 1, 1: 0}})]


def test_many_groups_are_left_in_messages_of_bounded_size(engine: Engine) -> None:
    names = [f"{number:0{MAX_NAME}}" for number in range(FRAME_BYTES // MAX_NAME)]
    for name in names:
        engine.replica.end(engine.replica.begin(name, 0, PROMPT, []))
    engine.pass_time()
    left = [each for each in engine.pass_time(IDLE_S + 1.0) if isinstance(each, Leave)]
    assert all(len(msgspec.msgpack.encode(message)) <= FRAME_BYTES for message in left)
    assert [name for message in left for name in message.groups] == names


def test_a_group_that_is_done_is_closed_even_while_it_runs(engine: Engine) -> None:
    slot = engine.replica.begin("g", 0, PROMPT, [])
    engine.pass_time()
    engine.receive(Done(["g", "unknown"]))
    engine.decode(slot, 5)
    engine.replica.end(slot)
    assert not engine.drafter.groups
    assert not engine.drafter.slots
    assert engine.pass_time() == []
    assert engine.replica.facts()["tokens"] == 0


def test_the_idle_group_used_longest_ago_makes_room() -> None:
    engine = Engine(max_tokens=30)
    for name in ("a", "b", "c"):
        slot = engine.replica.begin(name, 0, PROMPT, list(range(4)))
        engine.pass_time()
        if name != "b":
            engine.replica.end(slot)
    engine.receive(Deltas([delta("c", 1, 0, *range(10))]))
    assert sorted(engine.drafter.groups) == ["b", "c"]
    assert engine.sent == [Leave(["a"])]
    engine.receive(Deltas([delta("b", 1, 0, *range(20))]))
    assert sorted(engine.drafter.groups) == ["b"]
    engine.receive(Deltas([delta("b", 2, 0, *range(20))]))
    assert engine.replica.facts()["refused_tokens"] == 20
    assert engine.replica.facts()["tokens"] == 27
    engine.check()


def test_the_number_of_groups_is_bounded_however_few_their_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_store, "MAX_GROUPS", 2)
    engine = Engine()
    for name in ("a", "b", "c", "d"):
        slot = engine.replica.begin(name, 0, PROMPT, [])
        engine.check()
        engine.pass_time()
        if name != "a":
            engine.replica.end(slot)
    assert sorted(engine.drafter.groups) == ["a", "d"]


def test_when_all_run_the_group_with_most_tokens_for_a_sequence_stops_drafting() -> None:
    engine = Engine(max_tokens=30)
    crowd = [engine.replica.begin("crowd", i, PROMPT, list(range(4))) for i in range(3)]
    alone = engine.replica.begin("alone", 0, PROMPT, [])
    engine.decode(alone, *range(10))
    assert sorted(engine.drafter.groups) == ["alone", "crowd"]
    engine.check()
    engine.decode(crowd[0], *range(3))
    assert sorted(engine.drafter.groups) == ["crowd"], "at once, not at the next housekeeping"
    engine.decode(alone, 1)
    engine.replica.end(alone)
    engine.check()
    again = engine.replica.begin("alone", 0, PROMPT, list(range(10)))
    assert sorted(engine.drafter.groups) == ["crowd"], "it still has the most tokens per sequence"
    engine.replica.end(again)
    engine.check()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 5), st.integers(0, 3), st.integers(0, 30)),
        st.tuples(st.just("decode"), st.integers(0, 9), st.integers(1, 6)),
        st.tuples(st.just("receive"), st.integers(0, 5), st.integers(4, 6), st.integers(1, 30)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("pass")),
    ),
    max_size=40,
)


@pytest.mark.parametrize("scope", ["fleet", "engine", "request"])
@given(operations, st.sampled_from([5, 40, 120]), st.booleans())
def test_the_tokens_here_stay_bounded_whatever_happens(
    scope: Scope, stream: list[tuple[Any, ...]], most: int, all_run: bool
) -> None:
    engine = Engine(scope=scope, max_tokens=most)
    slots: list[int] = []
    for what, *numbers in stream:
        if what == "begin":
            group, sequence, generated = numbers
            response = [group] * generated
            slots.append(engine.replica.begin(f"g{group}", sequence, PROMPT, response))
        elif what == "decode" and slots:
            engine.decode(slots[numbers[0] % len(slots)], *range(numbers[1]))
        elif what == "receive":
            group, sequence, tokens = numbers
            engine.receive(Deltas([delta(f"g{group}", sequence, 0, *range(tokens))]))
        elif what == "end" and slots and not all_run:
            engine.replica.end(slots.pop(numbers[0] % len(slots)))
        elif what == "pass":
            engine.pass_time(1.0)
        engine.check()


def test_the_memory_of_a_real_index_stays_bounded_while_all_groups_run() -> None:
    """`draft.memory` counts INDEX_BYTES per token: more than the rows in use need."""
    drafter, random, most = Drafter(), Random(0), 20_000
    replica = Replica(drafter, None, max_tokens=most, scope="fleet", clock=lambda: 0.0)
    prompt = [random.randrange(1000) for _ in range(100)]
    slots = [replica.begin(f"g{i % 8}", i // 8, prompt, []) for i in range(64)]
    phrases = [[random.randrange(1000) for _ in range(40)] for _ in range(30)]
    closed = 0
    for _ in range(300):
        for slot in slots:
            tokens = [*phrases[random.randrange(30)][:3], random.randrange(1000)]
            replica.grown(slot, tokens)
            counts = np.array([len(tokens)], np.int32)
            none = np.zeros(1, np.int32)
            drafter.step(np.array([slot]), np.array(tokens, np.int32), counts, none, 1)
            assert drafter.tokens == replica.facts()["tokens"] <= most
        assert drafter.nbytes <= INDEX_BYTES * most
        closed = 8 - replica.facts()["groups"]
    assert closed > 0, "the limit was reached"


def test_the_work_of_one_step_is_bounded(engine: Engine) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    tokens = range(5 * DRAIN_TOKENS)
    engine.replica.received(Deltas([delta("g", 1, 0, *tokens)]))
    lengths = []
    while not engine.replica.facts()["waits"]["count"]:
        engine.replica.drain(engine.now)
        lengths.append(len(engine.drafter.groups["g"].get(1, [])))
    steps = [after - before for before, after in itertools.pairwise([0, *lengths])]
    assert all(step <= DRAIN_TOKENS for step in steps)
    assert engine.index() == [[], list(tokens)]


def test_a_message_waits_until_its_last_token_is_in_the_index(engine: Engine) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    engine.replica.received(Deltas([delta("g", 1, 0, 7)]))
    engine.now = 0.5
    engine.replica.received(Deltas([delta("g", 2, 0, *range(2 * DRAIN_TOKENS))]))
    for now in (1.0, 2.0, 3.0):
        engine.replica.drain(now)
    assert engine.replica.facts()["waits"] == {"count": 2, "sum_s": 3.5, "max_s": 2.5}


@pytest.mark.parametrize(
    "bad",
    [
        delta("g", 1, 0, 5, -1),
        delta("g", 1, 0, 1 << 20),
        Delta("g", 1, 0, b"abc"),
        Delta("g", 1, 0, b""),
        Delta("g", 1, (1 << 31) - 1, b"abcd"),
    ],
)
def test_nonsense_never_reaches_the_index(engine: Engine, bad: Delta) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    engine.receive(Deltas([bad]))
    assert engine.index() == [[]]


def test_sequences_of_a_group_are_bounded(engine: Engine) -> None:
    engine.replica.begin("g", 0, PROMPT, [])
    engine.replica.received(Deltas([delta("g", i, 0, 1) for i in range(2 * MAX_SEQUENCES)]))
    while not engine.replica.facts()["waits"]["count"]:
        engine.replica.drain(engine.now)
    assert len(engine.index()) == MAX_SEQUENCES


@pytest.mark.parametrize("name", ["g" * (MAX_NAME + 1), "\ud800"])
def test_names_that_cannot_travel_do_so_as_digests(engine: Engine, name: str) -> None:
    slot = engine.replica.begin(name, 0, PROMPT, [])
    sent = engine.pass_time()
    assert sent == [Open({wire_name(name): {0: 0}})]
    assert msgspec.msgpack.encode(sent)
    assert engine.replica.source(slot, 0) == "own"


def test_an_engine_that_shares_nothing_still_takes_history_and_done() -> None:
    engine = Engine("engine")
    slot = engine.replica.begin("g", 0, PROMPT, [])
    engine.decode(slot, 5)
    assert engine.pass_time() == [Open({"g": {}})]
    engine.receive(Deltas([delta("g", 8, 0, 6, 7)]), Want({"g": {0: 0}}))
    assert engine.index() == [[5], [6, 7]]
    engine.decode(slot, 6)
    engine.replica.connected()
    assert engine.pass_time() == [Open({"g": {8: 2}})]
    engine.receive(Done(["g"]))
    assert not engine.drafter.groups


def test_a_request_of_its_own_sees_no_sibling() -> None:
    engine = Engine("request")
    first = engine.replica.begin("g", 0, PROMPT, [5])
    second = engine.replica.begin("g", 1, PROMPT, [])
    engine.decode(second, 6)
    assert engine.drafter.slots[first][0] != engine.drafter.slots[second][0]
    assert list(engine.drafter.prompts.values()) == [PROMPT, PROMPT]
    assert engine.pass_time() == [Open({"g": {}})]
    engine.replica.end(first)
    again = engine.replica.begin("g", 0, PROMPT, [5])
    assert len(engine.drafter.groups) == 2
    assert engine.replica.source(again, 0) == "own"
    engine.receive(Done(["g"]))
    engine.replica.end(again)
    assert not engine.drafter.groups


def test_without_a_hub_it_all_works() -> None:
    engine = Engine("engine", hub=False)
    slot = engine.replica.begin("g", 0, PROMPT, [])
    engine.decode(slot, 5)
    engine.replica.begin("g", 1, PROMPT, [])
    engine.pass_time(1.0)
    engine.replica.end(slot)
    engine.pass_time(2 * IDLE_S)
    assert engine.index() == [[], [5]]
    engine.check()


def test_calls_that_all_have_one_name_end_neither_the_group_nor_the_engine(engine: Engine) -> None:
    for _ in range(MAX_SEQUENCES + 10):
        slot = engine.replica.begin("g", 0, PROMPT, [])
        engine.decode(slot, 5)
        engine.replica.end(slot)
    assert engine.index() == [[5]] * 10, "it began anew"
