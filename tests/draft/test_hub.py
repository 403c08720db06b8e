"""The hub sends each peer every token that it lacks, once and in order; no message harms it."""

import tracemalloc
from array import array
from typing import Any

import msgspec
import pytest

from seer_sgl.draft import hub as hub_module
from seer_sgl.draft.hub import LOG_TOKENS, Hub
from seer_sgl.draft.messages import (
    FRAME_BYTES,
    MAX_ENTRIES,
    MAX_NAME,
    MAX_NUMBER,
    MAX_SEQUENCES,
    Delta,
    Deltas,
    Done,
    Leave,
    Open,
    ToHub,
    ToReplica,
    Want,
    batched,
    by_hub,
    hub_of,
    pieces,
)
from tests.draft.replicas import PLENTY, delta, tokens_of


def deltas(*parts: Delta) -> Deltas:
    return Deltas(list(parts))


def taken(hub: Hub, peer: str) -> list[ToReplica]:
    messages = []
    while (message := hub.take(peer)) is not None:
        messages.append(message)
    assert not hub.pending(peer)
    return messages


def opened(**groups: dict[int, int]) -> Open:
    return Open(groups)


@pytest.fixture
def hub() -> Hub:
    result = Hub(PLENTY)
    for peer in ("a", "b"):
        result.receive(peer, opened(g={}))
    return result


def test_what_one_engine_decodes_goes_to_those_that_serve_the_group(hub: Hub) -> None:
    hub.receive("c", opened(other={}))
    hub.receive("a", deltas(delta("g", 0, 0, 1, 2), delta("g", 1, 0, 7)))
    hub.receive("a", deltas(delta("g", 0, 2, 3)))
    assert taken(hub, "b") == [deltas(delta("g", 0, 0, 1, 2, 3), delta("g", 1, 0, 7))]
    assert taken(hub, "a") == taken(hub, "c") == []
    hub.receive("b", deltas(delta("g", 1, 1, 8)))
    assert taken(hub, "a") == [deltas(delta("g", 1, 1, 8))]
    assert taken(hub, "b") == []


def test_duplicates_and_overlaps_change_nothing_and_are_counted_once(hub: Hub) -> None:
    for message in (
        deltas(delta("g", 0, 0, 1, 2, 3)),
        deltas(delta("g", 0, 0, 1, 2, 3)),
        deltas(delta("g", 0, 1, 9, 9)),
        deltas(delta("g", 0, 2, 9, 4)),
    ):
        hub.receive("a", message)
    assert tokens_of(hub, "g") == {0: [1, 2, 3, 4]}
    assert hub.tokens == 4 + LOG_TOKENS


@pytest.mark.parametrize("group", ["g", "unheard of"])
def test_a_gap_is_never_filled_but_asked_about(hub: Hub, group: str) -> None:
    hub.receive("a", deltas(delta("g", 0, 0, 1)))
    taken(hub, "b")
    hub.receive("a", deltas(delta(group, 0, 3, 4), delta(group, 1, 5, 4)))
    have = {0: 1 if group == "g" else 0, 1: 0}
    assert taken(hub, "a") == [Want({group: have})]
    assert tokens_of(hub, "g") == {0: [1]}
    assert taken(hub, "b") == []


def test_who_comes_late_gets_what_it_lacks_in_messages_of_bounded_size(hub: Hub) -> None:
    long = array("i", range(FRAME_BYTES))
    for part in batched(pieces("g", 0, long, 0)):
        hub.receive("a", part)
    hub.receive("a", deltas(delta("g", 1, 0, 5, 6)))
    hub.receive("late", opened(g={1: 1, 0: 100}))
    messages = taken(hub, "late")
    assert len(messages) == 4
    assert all(len(msgspec.msgpack.encode(message)) < 1 << 20 for message in messages)
    replica = {0: long[:100], 1: array("i", [5])}
    for message in messages:
        assert isinstance(message, Deltas)
        for piece in message.deltas:
            assert piece.position == len(replica[piece.sequence])
            replica[piece.sequence].frombytes(piece.tokens)
    assert {number: list(tokens) for number, tokens in replica.items()} == tokens_of(hub, "g")


def test_what_was_sent_to_who_came_late_takes_no_memory(hub: Hub) -> None:
    hub.receive("a", deltas(*pieces("g", 0, array("i", range(100_000)), 0)))
    hub.receive("late", opened(g={}))
    tracemalloc.start()
    try:
        assert taken(hub, "late")
        assert tracemalloc.get_traced_memory()[0] < 40_000, "400,000 bytes were sent"
    finally:
        tracemalloc.stop()


def test_many_long_names_go_out_in_messages_of_bounded_size() -> None:
    hub = Hub(1 << 30)
    names = [f"{number:0{MAX_NAME}}" for number in range(MAX_ENTRIES)]
    hub.receive("a", Open({name: {0: 1} for name in names}))
    for kind in (Want, Done):
        messages = taken(hub, "a")
        assert all(type(message) is kind for message in messages)
        assert all(len(msgspec.msgpack.encode(message)) <= FRAME_BYTES for message in messages)
        named = [name for message in messages for name in message.groups]  # type: ignore[union-attr]
        assert named == names
        for name in names:
            hub.done(name)


def test_a_hub_that_restarts_asks_for_what_it_lacks() -> None:
    hub = Hub(PLENTY)
    hub.receive("a", opened(g={0: 3, 1: 2}))
    assert taken(hub, "a") == [Want({"g": {0: 0, 1: 0}})]
    hub.receive("b", opened(g={0: 1}))
    assert taken(hub, "b") == [Want({"g": {0: 0}})]
    hub.receive("a", deltas(delta("g", 0, 0, 1, 2, 3)))
    hub.receive("b", opened(g={0: 1}))
    assert taken(hub, "b") == [deltas(delta("g", 0, 1, 2, 3))]


def test_who_left_a_group_hears_no_more_of_it(hub: Hub) -> None:
    hub.receive("a", deltas(delta("g", 0, 0, 1)))
    hub.receive("b", Leave(["g", "unknown"]))
    hub.receive("a", deltas(delta("g", 0, 1, 2)))
    assert taken(hub, "b") == []
    hub.receive("b", opened(g={}))
    assert taken(hub, "b") == [deltas(delta("g", 0, 0, 1, 2))]


def test_what_a_dead_engine_told_stays(hub: Hub) -> None:
    hub.receive("a", deltas(delta("g", 0, 0, 1)))
    hub.left("a")
    hub.left("a")
    assert not hub.pending("a")
    assert taken(hub, "a") == []
    assert taken(hub, "b") == [deltas(delta("g", 0, 0, 1))]


def test_a_finished_group_is_forgotten_and_stays_so(hub: Hub) -> None:
    hub.receive("a", deltas(delta("g", 0, 0, 1)))
    hub.done("g")
    assert hub.tokens == 0
    assert "g" not in hub.groups
    hub.receive("a", deltas(delta("g", 0, 0, 1, 2), delta("g", 0, 9, 1)))
    assert "g" not in hub.groups, "its late tokens are dropped"
    assert taken(hub, "a") == taken(hub, "b") == [Done(["g"])]
    hub.receive("late", opened(g={0: 1}))
    assert taken(hub, "late") == [Done(["g"])]


def test_a_client_of_the_hub_may_say_done_and_bring_history(hub: Hub) -> None:
    hub.receive("driver", deltas(delta("g", 8, 0, 1, 2)))
    assert taken(hub, "a") == [deltas(delta("g", 8, 0, 1, 2))]
    hub.receive("driver", Done(["g"]))
    assert Done(["g"]) in taken(hub, "a")
    assert taken(hub, "driver") == []


def test_the_names_of_finished_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MAX_DONE", 2)
    hub = Hub(PLENTY)
    for name in ("x", "y", "x", "z"):
        hub.done(name)
    hub.receive("a", opened(x={}, y={}, z={}))
    assert taken(hub, "a") == [Done(["x", "z"])]


def test_the_groups_used_longest_ago_make_room() -> None:
    hub = Hub(4 * (LOG_TOKENS + 10))
    hub.receive("a", opened(g0={}))
    for i in range(4):
        hub.receive("driver", deltas(delta(f"g{i}", 0, 0, *range(10))))
    hub.receive("b", deltas(delta("g0", 0, 10, 1)))  # used again, and one token over the limit
    assert [name for name in ("g0", "g1", "g2", "g3") if name in hub.groups] == ["g0", "g2", "g3"]
    assert taken(hub, "a") == [deltas(delta("g0", 0, 0, *range(10), 1))]
    hub.receive("driver", deltas(delta("g4", 0, 0, *range(1000))))
    assert tokens_of(hub, "g4") == {}, "a sequence that can never fit is refused"
    assert "g0" in hub.groups, "and displaces no other group"
    assert hub.refused == 1
    assert hub.tokens <= hub.max_tokens


def test_groups_nobody_serves_go_first() -> None:
    hub = Hub(4 * (LOG_TOKENS + 1))
    hub.receive("a", opened(g0={}, g3={}))
    for i in range(4):
        hub.receive("b", deltas(delta(f"g{i}", 0, 0, 1)))
    hub.receive("a", Leave(["g3"]))
    for name in ("g4", "g5", "g6"):
        hub.receive("driver", deltas(delta(name, 0, 0, 1)))
    assert list(hub.groups) == ["g0", "g4", "g5", "g6"]
    hub.receive("a", opened(g0={}, g4={}, g5={}, g6={}))
    hub.receive("driver", deltas(delta("g7", 0, 0, 1)))
    assert list(hub.groups) == ["g4", "g5", "g6", "g7"], "all but the newest were served"
    taken(hub, "a")
    hub.receive("a", opened(g4={0: 1, 1: 2, 2: 1}))
    assert taken(hub, "a") == [Want({"g4": {2: 0}})], "as many tokens as g7 has may be requested"
    hub.receive("driver", deltas(delta("g8", 0, 0, 1)))
    assert list(hub.groups) == ["g5", "g6", "g4", "g8"]


def test_an_engine_is_asked_about_a_group_that_it_was_forgotten_to_serve() -> None:
    hub = Hub(4 * LOG_TOKENS)
    hub.receive("b", opened(other={}))
    for peer in ("a", "b"):
        hub.receive(peer, opened(g={}))
    hub.receive("a", deltas(delta("g", 0, 0, 1)))
    hub.receive("evil", opened(x0={}, x1={}))
    for name in ("x0", "x1"):
        hub.receive("evil", deltas(delta(name, 0, 0, *range(200))))
    assert "g" not in hub.groups
    hub.receive("a", deltas(delta("g", 0, 1, 2)))
    hub.receive("b", deltas(delta("g", 1, 0, 7)))
    assert taken(hub, "a") == [Want({"g": {0: 0}})]
    hub.receive("a", opened(g={0: 2}))
    hub.receive("a", deltas(delta("g", 0, 0, 1, 2)))
    hub.receive("b", opened(g={1: 1}))
    assert taken(hub, "b") == [deltas(delta("g", 0, 0, 1, 2))], "it needs no request any more"


def test_asking_pushes_nobody_out_that_is_served() -> None:
    hub = Hub(3 * LOG_TOKENS)
    hub.receive("b", opened(kept={}))
    hub.receive("driver", deltas(delta("kept", 0, 0, *range(10))))
    hub.receive("a", opened(g={0: 100, 1: 100, 2: 10**9}))
    assert taken(hub, "a") == [Want({"g": {0: 0}})]
    assert "kept" in hub.groups


@pytest.mark.parametrize(
    "message",
    [
        Deltas([Delta("g", 0, 0, b"abc")]),
        Deltas([Delta("g", 0, 0, b"")]),
        Deltas([Delta("g", 0, MAX_NUMBER, b"abcd")]),
        Deltas([Delta("g", 0, MAX_NUMBER - 1, b"abcd")]),
        Open({"g": {0: MAX_NUMBER}}),
        Open({f"g{i}": {} for i in range(1000)}),
        Open({"g": dict.fromkeys(range(MAX_SEQUENCES), MAX_NUMBER)}),
        Leave(["g", "g", "h"]),
        Done(["h", "h"]),
    ],
)
def test_nonsense_does_no_harm(hub: Hub, message: ToHub) -> None:
    hub.receive("a", deltas(delta("g", 0, 0, 1, 2)))
    hub.receive("evil", message)
    hub.receive("evil", message)
    assert tokens_of(hub, "g") == {0: [1, 2]}
    assert taken(hub, "b") == [deltas(delta("g", 0, 0, 1, 2))]
    assert len(taken(hub, "evil")) <= 1
    hub.left("evil")
    assert len(hub.groups) == 1


def test_more_sequences_or_groups_than_there_may_be_are_refused(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MAX_SEQUENCES", 3)
    monkeypatch.setattr(hub_module, "MAX_GROUPS", 5)
    monkeypatch.setattr(hub_module, "MAX_WANTS", 2)
    hub.receive("evil", deltas(*(delta("g", i, 0, 1) for i in range(9))))
    assert sorted(tokens_of(hub, "g")) == [0, 1, 2]
    hub.receive("evil", deltas(*(delta("g", i, 7, 1) for i in range(9))))
    assert taken(hub, "evil") == [Want({"g": {0: 1, 1: 1}})]
    hub.receive("evil", Open({f"h{i}": {} for i in range(9)}))
    assert len(hub.groups) == 5


@pytest.mark.parametrize(
    "garbage",
    [
        ["deltas", [["g", -1, 0, b""]]],
        {"type": "deltas", "deltas": [["g", 0, -1, b"abcd"]]},
        {"type": "deltas", "deltas": [["g", 0, 1 << 31, b"abcd"]]},
        {"type": "deltas", "deltas": [["g" * (MAX_NAME + 1), 0, 0, b"abcd"]]},
        {"type": "deltas", "deltas": [["g", 0, 0, [1, 2]]]},
        {"type": "open", "groups": {"g": {-1: 3}}},
        {"type": "open", "groups": {"g": {1: -3}}},
        {"type": "open", "groups": {"g": dict.fromkeys(range(MAX_SEQUENCES + 1), 1)}},
        {"type": "leave", "groups": [3]},
        {"type": "done", "groups": "g"},
    ],
)
def test_impossible_values_are_not_even_decoded(garbage: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(garbage), type=ToHub)


@pytest.mark.parametrize("hubs", [1, 2, 3, 8])
def test_a_message_goes_to_the_hubs_of_its_groups_and_none_of_it_is_lost(hubs: int) -> None:
    names = [f"group {n}" for n in range(100)]
    parts = by_hub(Deltas([delta(name, n, 0, n) for n, name in enumerate(names)]), hubs)
    sent = [(hub, each) for hub, part in parts.items() for each in part.deltas]  # type: ignore[union-attr]
    assert sorted(each.sequence for _, each in sent) == list(range(100))
    assert all(hub == hub_of(each.group, hubs) for hub, each in sent)
    assert set(parts) == set(range(hubs)), "each serves some of a hundred groups"
    groups = {name: {n: n} for n, name in enumerate(names)}
    opens = by_hub(Open(groups), hubs)
    assert {k: v for part in opens.values() for k, v in part.groups.items()} == groups  # type: ignore[union-attr]
    assert set(opens) == set(parts)
    for kind in (Leave, Done):
        ends = by_hub(kind(names), hubs)
        assert all(type(part) is kind for part in ends.values())
        ended = [(hub, name) for hub, part in ends.items() for name in part.groups]  # type: ignore[union-attr]
        assert sorted(ended) == sorted((hub_of(name, hubs), name) for name in names)
