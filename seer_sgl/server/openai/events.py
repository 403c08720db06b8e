"""Server-sent events of completions and chats."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from seer_sgl.engine.stream import DONE, PREFIX

from ..calls import Answer
from ..json import EVENTS, dumps
from ..meta_info import Reply
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
    """Sends the responses as they grow. Raises the error of one that fails before the first event.

    `chunks`: of the response at a position, and its newest reply. `last`: of all replies, at the
    end.
    """
    newest: list[Json] = [{}] * len(answers)
    response: web.StreamResponse | None = None
    async with contextlib.aclosing(as_they_come(answers)) as positions:
        async for index in positions:
            error = answers[index].error
            if response is None:
                if error is not None:
                    raise error
                response = web.StreamResponse(headers=EVENTS)
                await response.prepare(http)
            if error is not None:
                await _send(response, {"error": error_object(str(error), error.status)})
                break
            newest[index] = replies[index].event()
            for chunk in chunks(index, newest[index]):
                await _send(response, chunk)
        else:
            assert response is not None
            for chunk in last(newest):
                await _send(response, chunk)
    assert response is not None
    await response.write(PREFIX + b" " + DONE + b"\n\n")
    return response


async def _send(response: web.StreamResponse, chunk: Json) -> None:
    await response.write(PREFIX + b" " + dumps(chunk) + b"\n\n")
