"""Answers of engines to calls that are no chunks, with any HTTP status."""

import asyncio
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import msgspec

from seer_sgl.errors import EngineUnavailable

from .client import HttpEngine
from .session import read_body

T = TypeVar("T")
MOST_BYTES = 1 << 26  # of an answer: a prompt of many million tokens
ANSWER_S = 60.0  # a busy engine tokenizes a long prompt in seconds


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
            return msgspec.json.decode(self.body, type=kind)
        except msgspec.DecodeError:
            return None


async def ask(
    engine: HttpEngine, method: str, path: str, body: bytes | None = None
) -> EngineAnswer:
    """Returns an engine's answer, with any HTTP status. Raises EngineUnavailable."""
    try:
        async with asyncio.timeout(ANSWER_S), engine.send(method, path, body) as answer:
            content_type = answer.headers.get("Content-Type", "application/json")
            return EngineAnswer(answer.status, content_type, await read_body(answer, MOST_BYTES))
    except TimeoutError as error:
        engine_id = engine.info.engine_id
        why = f"engine {engine_id}: no answer on {path} within {ANSWER_S:g} s"
        raise EngineUnavailable(why, engine_id=engine_id) from error
