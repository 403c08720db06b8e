"""Answers that are sent piece by piece."""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from aiohttp import web

logger = logging.getLogger(__name__)


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


def abandon(http: web.Request) -> None:
    """Ends the connection of a request, so that the client sees that its answer is incomplete."""
    if http.transport is not None:
        http.transport.abort()
