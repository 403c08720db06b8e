"""Waits for several responses: for each step of their progress, or for all to end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from .calls import Answer
from .meta_info import Reply


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
