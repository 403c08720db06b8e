"""Ends the requests that a dead driver has left on an engine.

SGLang's scheduler aborts every request whose id begins with the one to abort
(`Scheduler.abort_request`). But its front end passes on only an id that it knows
(`TokenizerManager.abort_request`). So a request of our own, the marker, has the prefix as its id:
with its abort, the scheduler ends the orphans too.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from seer_sgl.errors import EngineError, EngineUnavailable

from .answers import ask
from .client import HttpEngine
from .server_calls import REPLY_BYTES, decode_control
from .wire import Finish

logger = logging.getLogger(__name__)
TIMEOUT_S = 30.0  # an engine that is paused does not answer
ABORT_EVERY_S = 0.02
# A marker may end before the abort arrives. Then the next one is sent.
MARKERS = 5
MARKER_TOKENS = 256
# With its second token, one decode step of the whole batch has ended after the abort: SGLang ends
# running requests, and frees their KV, with their next step.
SETTLED_TOKENS = 2


class _Meta(msgspec.Struct):
    finish_reason: Finish


class _Reply(msgspec.Struct):
    meta_info: _Meta


async def end_orphans(engines: Iterable[HttpEngine], prefix: str) -> None:
    """Aborts all requests of engines whose id begins with `prefix`, and waits for their end.

    Never raises: if it fails, they decode on until SGLang finds that their connection is closed.
    """
    servers: dict[str, list[HttpEngine]] = {}
    for engine in engines:
        servers.setdefault(engine.info.server_id, []).append(engine)

    async def one_by_one(of_server: Iterable[HttpEngine]) -> None:
        for engine in of_server:  # a server knows one request of an id
            await _end_orphans(engine, prefix)

    await asyncio.gather(*map(one_by_one, servers.values()))


async def _end_orphans(engine: HttpEngine, prefix: str) -> None:
    why = "it answered before it could be aborted"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(MARKERS):
                if await _aborted(engine, prefix):
                    await _generate(engine, f"{prefix}/settled", SETTLED_TOKENS)
                    return
    except TimeoutError:
        why = f"no answer in {TIMEOUT_S:g} s"
    except EngineError as error:
        why = str(error)
    logger.warning(
        "engine %s: requests of the process before may still run: %s", engine.info.engine_id, why
    )


async def _aborted(engine: HttpEngine, prefix: str) -> bool:
    """Sends a marker and aborts it. Returns whether the abort has reached the scheduler."""
    tokens = min(MARKER_TOKENS, engine.info.max_request_len - 1)
    marker = asyncio.create_task(_generate(engine, prefix, tokens))
    try:
        while not marker.done():
            await asyncio.wait({marker}, timeout=ABORT_EVERY_S)
            if not marker.done():
                await _post(engine, "/abort_request", {"rid": prefix})
        return await marker == "abort"
    finally:
        marker.cancel()


async def _generate(engine: HttpEngine, rid: str, tokens: int) -> str:
    """Has the engine generate some tokens; returns the finish reason."""
    # Neutral sampling with a seed: other requests of the batch keep their noise.
    params = {"max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": 0}
    body = {"rid": rid, "input_ids": [0], "sampling_params": params}
    reply = await _post(engine, "/generate", body)
    return decode_control(reply, _Reply, "/generate").meta_info.finish_reason.type


async def _post(engine: HttpEngine, path: str, body: dict[str, Any]) -> bytes:
    answer = await ask(engine, "POST", path, msgspec.json.encode(body), limit=REPLY_BYTES)
    if answer.status >= 400:
        raise EngineUnavailable(f"HTTP {answer.status} on {path}")
    return answer.body
