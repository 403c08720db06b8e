"""Sends one control call to many engines concurrently; collective operations need that."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from seer_sgl.engine.answers import AnswerLate, ask
from seer_sgl.engine.client import LOAD_TIMEOUT_S, HttpEngine
from seer_sgl.errors import EngineUnavailable
from seer_sgl.timing import Timing

from .replies import EngineReply, Replies, read_reply

# Collectives that wait for a trainer take as long as loading does. An engine that is silent for
# longer missed the call.
CALL_S = LOAD_TIMEOUT_S
REPLY_BYTES = 256 << 20  # of one engine: weights_checker returns a checksum per tensor and rank
IDLE_POLL_S = 0.1
_limit_s: ContextVar[float] = ContextVar("_limit_s", default=CALL_S)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Limits the calls of the block, and of the tasks that it starts, to so many seconds each."""
    token = _limit_s.set(seconds)
    try:
        yield
    finally:
        _limit_s.reset(token)


async def call(
    engine: HttpEngine,
    method: str,
    path: str,
    body: bytes | None = None,
    within_s: float = CALL_S,
) -> EngineReply:
    """Returns an engine's reply to one call; never raises for what the engine does."""
    within_s = min(within_s, _limit_s.get())
    try:
        answer = await ask(engine, method, path, body, within_s=within_s, limit=REPLY_BYTES)
    except EngineUnavailable as error:
        return EngineReply(None, str(error), late=isinstance(error, AnswerLate))
    return read_reply(answer.status, answer.body)


async def call_all(
    engines: Sequence[HttpEngine],
    method: str,
    path: str,
    body: bytes | Mapping[str, bytes] | None = None,
    within_s: float = CALL_S,
) -> Replies:
    """Returns the replies by engine id. `body`: one for all, or by engine id."""

    def called(engine: HttpEngine) -> Awaitable[EngineReply]:
        own = body[engine.info.engine_id] if isinstance(body, Mapping) else body
        return call(engine, method, path, own, within_s)

    return await on_each(engines, called)


async def server_infos(engines: Sequence[HttpEngine], within_s: float) -> dict[str, dict[str, Any]]:
    """Returns what servers say of themselves, by engine id; without those that do not answer."""
    replies = await call_all(engines, "GET", "/server_info", within_s=within_s)
    return {name: reply.reply for name, reply in replies.items() if isinstance(reply.reply, dict)}


async def on_each(
    engines: Sequence[HttpEngine], work: Callable[[HttpEngine], Awaitable[EngineReply]]
) -> dict[str, EngineReply]:
    """Does some work on all servers at once, and returns the replies by engine id.

    The engines of a server have one reply: the work is done on the first of them.
    """
    first = {engine.info.server_id: engine for engine in reversed(engines)}
    replies = dict(zip(first, await asyncio.gather(*map(work, first.values())), strict=True))
    return {engine.info.engine_id: replies[engine.info.server_id] for engine in engines}


async def until_idle(engine: HttpEngine, timing: Timing, *, pause: str | None) -> EngineReply:
    """Flushes an engine's cache once nothing runs there and all its KV is stored.

    SGLang flushes after new weights, and when it releases memory, and crashes if it cannot.
    `pause`: the mode of the fleet's pause. In place, requests that run stay, so that one
    try decides.
    """
    deadline = time.monotonic() + _limit_s.get()
    while True:
        # Without a timeout of SGLang's: with one it never flushes while it is paused.
        reply = await call(engine, "POST", "/flush_cache")
        if reply.ok or reply.status != HTTPStatus.BAD_REQUEST:
            return reply
        if pause == "in_place" or time.monotonic() >= deadline:
            return reply
        if pause == "retract":
            await _continue_briefly(engine, timing.quick_call_s)
        else:
            await asyncio.sleep(IDLE_POLL_S)


async def _continue_briefly(engine: HttpEngine, within_s: float) -> None:
    """Ends an engine's pause for a moment, before its weights change.

    A paused scheduler does not look whether its transfers between device, host and store have
    ended (`Scheduler.event_loop_normal`), and does not flush while they seem to continue.
    """
    await call(engine, "POST", "/continue_generation", b"{}", within_s)
    try:
        await asyncio.sleep(IDLE_POLL_S)
    finally:
        await call(engine, "POST", "/pause_generation", b'{"mode":"retract"}', within_s)
