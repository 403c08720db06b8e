"""Answers that are sent piece by piece, and waits for the responses in them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from .calls import Answer
from .errors import HttpError
from .meta_info import Reply

logger = logging.getLogger(__name__)
# Key of a request whose answer fails half-way: the status of the failure. aiohttp 3.14 has a type.
FAILED: Any = web.RequestKey("failed", int) if hasattr(web, "RequestKey") else "failed"


async def finished(answers: Sequence[Answer], replies: Sequence[Reply]) -> list[dict[str, Any]]:
    """Returns the reply objects of all answers when they have ended.

    Raises HttpError, as `Answer.end` does, for the first that failed.
    """
    for answer in answers:
        await answer.end()
    return [reply.event() for reply in replies]


async def as_they_come(answers: Sequence[Answer]) -> AsyncGenerator[int, None]:
    """Yields the position of an answer that has new tokens or has ended, each end once.

    Tokens that arrive while the consumer is busy are one item: a slow reader gets fewer events.
    """
    if len(answers) == 1:
        while True:
            await answers[0].wait_update()
            ended = answers[0].ended
            yield 0
            if ended:
                return
    waits = {asyncio.create_task(answer.wait_update()): n for n, answer in enumerate(answers)}
    try:
        while waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                index = waits.pop(wait)
                wait.result()
                ended = answers[index].ended
                yield index
                if not ended:
                    waits[asyncio.create_task(answers[index].wait_update())] = index
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@contextlib.asynccontextmanager
async def streaming(
    http: web.Request, headers: Mapping[str, str]
) -> AsyncIterator[web.StreamResponse]:
    """Begins an answer, to which the block writes.

    Raises ConnectionError if the client leaves. If the block fails, the connection ends: the error
    cannot become an answer of its own, and the client would wait for the rest.
    """
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    try:
        yield response
    except ConnectionError:
        raise
    except Exception as error:
        logger.exception("%s %s failed half-way", http.method, http.path)
        abandon(http)
        raise ConnectionResetError("the rest of the answer is lost") from error


def abandon(http: web.Request, status: int = HttpError.status) -> None:
    """Ends the connection of a request, so that the client sees that its answer is incomplete.

    status: of the failure, for the metrics.
    """
    http[FAILED] = status
    if http.transport is not None:
        http.transport.abort()
