"""A turn's session is closed once the next turn has its KV, and no later than its group."""

from typing import Any

import msgspec

from seer_sgl.driver.conversations import SessionCloser
from seer_sgl.types import Failure, FailureKind, Group
from tests.helpers import made_sample, make_group
from tests.support.infos import info


class FakeEngine:
    def __init__(self, engine_id: str, *, sessions: bool = True) -> None:
        self.info = msgspec.structs.replace(info(engine_id), sessions=sessions)
        self.closed: list[str] = []

    def close_session(self, uid: str) -> None:
        self.closed.append(uid)


def conversation(*ran_on: list[str]) -> Group:
    """Returns a group whose requests are the turns of a conversation, with the engines of each."""
    group = make_group(n=len(ran_on))
    before = None
    for request, engines in zip(group.requests, ran_on, strict=True):
        request.retain_kv, request.engines, request.follows = True, engines, before
        before = request.uid
    return group


def closer(*engines: FakeEngine) -> SessionCloser:
    by_id: Any = {engine.info.engine_id: engine for engine in engines}
    return SessionCloser(by_id)


def finish(sessions: SessionCloser, group: Group, index: int) -> None:
    sessions.finished(group.requests[index], made_sample(group.requests[index]))


def test_a_turn_is_closed_on_all_its_engines_once_the_next_one_has_its_kv() -> None:
    a, b, stock = FakeEngine("a"), FakeEngine("b"), FakeEngine("s", sessions=False)
    sessions = closer(a, b, stock)
    group = conversation(["a", "b", "s", "b", "gone"], ["b"])
    finish(sessions, group, 0)
    assert (a.closed, b.closed) == ([], [])
    finish(sessions, group, 1)
    assert (a.closed, b.closed, stock.closed) == (["g.0"], ["g.0"], [])


def test_the_end_of_a_group_closes_what_is_left_whatever_became_of_it() -> None:
    a = FakeEngine("a")
    sessions = closer(a)
    group = conversation(["a"], ["a"], [])
    finish(sessions, group, 1)
    sessions.closed(group, Failure(FailureKind.LOST, "lost"))
    assert a.closed == ["g.0", "g.1"]
    sessions.closed(group, None)
    assert a.closed == ["g.0", "g.1"] * 2, "nothing is kept of a group that has ended"


def test_requests_of_no_conversation_have_no_session() -> None:
    a = FakeEngine("a")
    sessions, group = closer(a), conversation(["a"], ["a"])
    for request in group.requests:
        request.retain_kv = False
    finish(sessions, group, 1)
    sessions.closed(group, None)
    assert a.closed == []


def test_the_next_turn_may_follow_a_request_of_another_group() -> None:
    a = FakeEngine("a")
    sessions, group = closer(a), conversation(["a"])
    group.requests[0].follows = "elsewhere"
    finish(sessions, group, 0)
    assert a.closed == []
