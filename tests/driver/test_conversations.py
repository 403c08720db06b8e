"""A turn's session is closed once a later turn has its KV, and no later than its group."""

from typing import Any

import msgspec
import pytest

from seer_sgl.driver.conversations import SessionCloser
from seer_sgl.types import Failure, FailureKind, Group
from tests.helpers import made_sample, make_group
from tests.support.infos import chunk_on, info


class FakeEngine:
    def __init__(self, engine_id: str, *, sessions: bool = True) -> None:
        self.info = msgspec.structs.replace(info(engine_id), sessions=sessions)
        self.closed: list[str] = []

    def close_session(self, uid: str) -> None:
        self.closed.append(uid)


class Talk:
    """A conversation on the engines a, b, and s, which has no sessions."""

    def __init__(self, turns: int, *, retain_kv: bool = True) -> None:
        self.a, self.b = FakeEngine("a"), FakeEngine("b")
        self.stock = FakeEngine("s", sessions=False)
        by_id: Any = {e.info.engine_id: e for e in (self.a, self.b, self.stock)}
        self.engines, self.sessions = by_id, SessionCloser(by_id)
        self.group: Group = make_group(n=turns)
        before = None
        for request in self.group.requests:
            request.retain_kv, request.follows, before = retain_kv, before, request.uid

    def send(self, index: int, *engines: str) -> None:
        for engine_id in engines:
            self.sessions.sent(chunk_on(engine_id, self.group.requests[index]), 1.0)

    def finish(self, index: int, reason: Any = "stop") -> None:
        request = self.group.requests[index]
        request.finish(reason, None, 1.0)
        self.sessions.finished(request, made_sample(request))


def test_a_turn_is_closed_on_all_engines_that_it_was_sent_to_once_the_next_has_its_kv() -> None:
    talk = Talk(2)
    talk.send(0, "a", "b", "s", "b")
    talk.finish(0)
    talk.send(1, "b")
    assert (talk.a.closed, talk.b.closed) == ([], [])
    talk.finish(1)
    assert (talk.a.closed, talk.b.closed, talk.stock.closed) == (["g.0"], ["g.0"], [])


@pytest.mark.parametrize("why", ["aborted", "failed"])
def test_a_turn_that_came_to_nothing_leaves_the_kv_to_the_next_try(why: str) -> None:
    talk = Talk(3)
    talk.send(0, "a")
    talk.finish(0)
    talk.send(1, "a")
    if why == "failed":
        talk.group.requests[1].failure = Failure(FailureKind.REFUSED, "refused")
    talk.finish(1, "abort" if why == "aborted" else "stop")
    assert talk.a.closed == []
    talk.send(2, "b")
    talk.finish(2)
    assert talk.a.closed == ["g.1", "g.0"]


def test_the_end_of_a_group_closes_what_is_left_whatever_became_of_it() -> None:
    talk = Talk(3)
    talk.send(0, "a")
    talk.send(1, "a", "gone")
    talk.send(2, "b")
    talk.finish(0)
    talk.finish(1)
    del talk.engines["b"]
    talk.sessions.closed(talk.group, Failure(FailureKind.LOST, "lost"))
    assert (talk.a.closed, talk.b.closed) == (["g.0", "g.1"], [])
    talk.sessions.closed(talk.group, None)
    assert talk.a.closed == ["g.0", "g.1"]


def test_requests_of_no_conversation_have_no_session() -> None:
    talk = Talk(2, retain_kv=False)
    talk.send(0, "a")
    talk.send(1, "a")
    talk.finish(1)
    talk.sessions.closed(talk.group, None)
    assert talk.a.closed == []


def test_a_turn_may_follow_a_request_of_another_group() -> None:
    talk = Talk(1)
    talk.group.requests[0].follows = "elsewhere"
    talk.send(0, "a")
    talk.finish(0)
    assert talk.a.closed == []
