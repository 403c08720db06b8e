"""Answers of engines to calls that are no chunks, with any HTTP status."""

from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from seer_sgl.errors import EngineUnavailable

from . import wire
from .client import HttpEngine
from .server_calls import REPLY_BYTES, decode_control
from .session import read_body, within

T = TypeVar("T")
MOST_BYTES = 1 << 26  # of an answer: a prompt of many million tokens
ANSWER_S = 60.0  # a busy engine tokenizes a long prompt in seconds


class AnswerLate(EngineUnavailable):
    """An engine has not answered in time; it may still do what it was asked for."""


class EngineAnswer(NamedTuple):
    """An engine's answer to a request."""

    status: int
    content_type: str
    body: bytes

    def decoded(self, kind: type[T]) -> T | None:
        """Returns the decoded body; None for an error."""
        if self.status != HTTPStatus.OK:
            return None
        try:
            return wire.decode(self.body, kind)
        except wire.Unreadable:
            return None


async def ask(
    engine: HttpEngine,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    within_s: float = ANSWER_S,
    limit: int = MOST_BYTES,
) -> EngineAnswer:
    """Returns an engine's answer of at most `limit` bytes, with any HTTP status.

    Raises EngineUnavailable, and AnswerLate after `within_s` seconds.
    """
    try:
        async with within(within_s), engine.send(method, path, body) as answer:
            content_type = answer.headers.get("Content-Type", "application/json")
            return EngineAnswer(answer.status, content_type, await read_body(answer, limit))
    except TimeoutError as error:
        engine_id = engine.info.engine_id
        why = f"engine {engine_id}: no answer on {path} within {within_s:g} s"
        raise AnswerLate(why, engine_id=engine_id) from error


async def ask_object(engine: HttpEngine, path: str, within_s: float = ANSWER_S) -> dict[str, Any]:
    """Returns the JSON object at a path of an engine. Raises EngineUnavailable."""
    answer = await ask(engine, "GET", path, within_s=within_s, limit=REPLY_BYTES)
    engine_id = engine.info.engine_id
    if answer.status != HTTPStatus.OK:
        why = f"engine {engine_id}: HTTP {answer.status} on {path}"
        raise EngineUnavailable(why, engine_id=engine_id, status=answer.status)
    return decode_control(answer.body, dict[str, Any], f"engine {engine_id}: {path}")
