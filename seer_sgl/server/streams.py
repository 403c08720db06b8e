"""Merges the progress of several responses into one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from .calls import Answer


async def as_they_come(answers: Sequence[Answer]) -> AsyncGenerator[int, None]:
    """Yields the position of an answer that has new tokens or has ended, each end once.

    Tokens that arrive while the consumer is busy are one item: a slow reader gets fewer events.
    """
    if len(answers) == 1:
        while True:
            await answers[0].news()
            ended = answers[0].ended
            yield 0
            if ended:
                return
    waits = {asyncio.create_task(answer.news()): n for n, answer in enumerate(answers)}
    try:
        while waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                index = waits.pop(wait)
                wait.result()
                ended = answers[index].ended
                yield index
                if not ended:
                    waits[asyncio.create_task(answers[index].news())] = index
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
