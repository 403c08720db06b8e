"""Server-sent events of completions and chats."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from ..calls import Answer
from ..json import END, EVENTS, event_of
from ..meta_info import Reply
from ..streaming import streaming
from ..streams import as_they_come
from .errors import error_object

Json = dict[str, Any]


async def stream_events(
    http: web.Request,
    answers: Sequence[Answer],
    replies: Sequence[Reply],
    chunks: Callable[[int, Json], Iterator[Json]],
    last: Callable[[list[Json]], Iterator[Json]],
) -> web.StreamResponse:
    """Sends the responses as they grow. Raises the error of one that fails before the first event,
    and ConnectionError if the client leaves.

    `chunks`: of the response at a position, and its newest reply. `last`: of all replies, at the
    end.
    """
    newest: list[Json] = [{}] * len(answers)
    async with contextlib.aclosing(as_they_come(answers)) as positions:
        first = await anext(positions)
        error = answers[first].error
        if error is not None:
            raise error
        async with streaming(http, EVENTS) as response:
            newest[first] = await _send_new(response, first, replies, chunks)
            async for index in positions:
                error = answers[index].error
                if error is not None:
                    await _send(response, {"error": error_object(error)})
                    break
                newest[index] = await _send_new(response, index, replies, chunks)
            else:
                for chunk in last(newest):
                    await _send(response, chunk)
            await response.write(END)
    return response


async def _send_new(
    response: web.StreamResponse,
    index: int,
    replies: Sequence[Reply],
    chunks: Callable[[int, Json], Iterator[Json]],
) -> Json:
    """Sends what is new in a response, and returns its newest reply."""
    event = replies[index].event()
    for chunk in chunks(index, event):
        await _send(response, chunk)
    return event


async def _send(response: web.StreamResponse, chunk: Json) -> None:
    await response.write(event_of(chunk))
