"""Sessions are closed one after the other; an engine that does not answer is asked no more."""

import asyncio

from seer_sgl.engine.closing import SessionCloses
from seer_sgl.errors import EngineUnavailable
from tests.support.waiting import until


class Closes:
    """An engine that closes sessions once it may."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.sessions = SessionCloses(self.close, timeout_s)

    async def close(self, uid: str) -> None:
        self.asked.append(uid)
        await self.answers.wait()
        if uid == "bad":
            raise EngineUnavailable("away", engine_id="e0")


async def test_one_is_closed_at_a_time_and_an_error_is_the_end_of_one() -> None:
    it = Closes()
    for uid in ("a", "bad", "b"):
        it.sessions.add(uid)
    await until(lambda: it.asked)
    assert it.asked == ["a"]
    it.answers.set()
    await it.sessions.settle()
    assert it.asked == ["a", "bad", "b"]
    it.sessions.add("c")
    await it.sessions.settle()
    assert it.asked[-1] == "c"


async def test_an_engine_that_does_not_answer_is_asked_no_more_for_those_that_wait() -> None:
    it = Closes(timeout_s=0.001)
    it.sessions.add("a")
    it.sessions.add("b")
    await it.sessions.settle()
    assert it.asked == ["a"]


async def test_who_waits_no_longer_gives_the_others_up() -> None:
    it = Closes()
    it.sessions.add("a")
    it.sessions.add("b")
    waiting = asyncio.create_task(it.sessions.settle())
    await until(lambda: it.asked)
    waiting.cancel()
    await asyncio.wait({waiting})
    it.answers.set()
    await it.sessions.settle()
    assert it.asked == ["a"]
