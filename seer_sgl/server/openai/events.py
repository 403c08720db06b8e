"""Server-sent events of completions and chats."""

import contextlib
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from seer_sgl.server.calls import Answer
from seer_sgl.server.json import END, EVENTS, event_of
from seer_sgl.server.meta_info import Reply
from seer_sgl.server.streams import FAILED, as_they_come, streaming

from .errors import error_object
from .parts import OpenAIResponse

Json = dict[str, Any]


async def stream_events(
    http: web.Request,
    answers: Sequence[Answer],
    replies: Sequence[Reply],
    made: OpenAIResponse,
) -> web.StreamResponse:
    """Sends the responses as they grow. Raises the error of one that fails before the first event,
    and ConnectionError if the client leaves.

    `replies`: incremental ones, of which `made` makes chunks.
    """
    newest: list[Json] = [{}] * len(answers)
    async with contextlib.aclosing(as_they_come(answers)) as positions:
        first = await anext(positions)
        error = answers[first].error
        if error is not None:
            raise error
        async with streaming(http, EVENTS) as response:
            newest[first] = await _send_new(response, first, replies[first], made)
            async for index in positions:
                error = answers[index].error
                if error is not None:
                    http[FAILED] = error.status
                    await response.write(event_of({"error": error_object(error)}))
                    break
                newest[index] = await _send_new(response, index, replies[index], made)
            else:
                for chunk in made.last(newest):
                    await response.write(event_of(chunk))
            await response.write(END)
    return response


async def _send_new(
    response: web.StreamResponse, index: int, reply: Reply, made: OpenAIResponse
) -> Json:
    event = reply.event()
    for chunk in made.chunks(index, event):
        await response.write(event_of(chunk))
    return event
