"""Calls to an SGLang server: a request and its whole reply, of limited size and in limited time."""

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import aiohttp
import msgspec

from seer_sgl.errors import EngineError, EngineUnavailable, RequestRejected

from . import wire
from .session import read_body, requested, within

T = TypeVar("T")

REPLY_BYTES = 4 << 20  # a reply without tokens, or the non-token part of a /generate reply
MAX_MESSAGE = 500  # characters of a server's explanation
GENERATE = "/generate"

# Status codes that mean the request itself is wrong. SGLang uses 400.
REFUSALS = (400, 413, 422)


class Unreachable(EngineUnavailable):
    """The connection failed, or there was no reply in time."""


class ServerCalls(NamedTuple):
    """Makes calls to the server at `url`. `name`: of the server, for messages.

    `exit_reason`: returns how the server has ended; empty: unknown.
    """

    session: aiohttp.ClientSession
    url: str
    name: str
    engine_id: str | None = None
    exit_reason: Callable[[], str] = str

    async def reply(
        self,
        method: str,
        path: str,
        body: aiohttp.Payload | None = None,
        limit: int = REPLY_BYTES,
    ) -> bytes:
        """Returns the reply to a call, of at most `limit` bytes, however long it takes.

        Raises Unreachable if the connection fails, RequestRejected if SGLang refuses a request of
        `/generate`, and EngineUnavailable for any other HTTP error.
        """
        try:
            async with requested(self.session, method, self.url + path, body) as response:
                reply = await read_body(response, limit)
        except (aiohttp.ClientError, OSError) as error:
            raise self.unreachable(error) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise self.failure(response.status, reply, path)
        return reply

    async def call(
        self,
        method: str,
        path: str,
        body: aiohttp.Payload | None = None,
        *,
        within_s: float,
        limit: int = REPLY_BYTES,
    ) -> bytes:
        """Returns the reply to a call. Raises like `reply`, and Unreachable after `within_s`."""
        try:
            async with within(within_s):
                return await self.reply(method, path, body, limit)
        except TimeoutError as error:
            raise self.unreachable(error, f"no answer on {path} within {within_s:g} s") from error

    async def get(self, path: str, kind: type[T], within_s: float) -> T:
        """Returns the JSON at a path, decoded as `kind`. Raises like `call`."""
        reply = await self.call("GET", path, within_s=within_s)
        return decode_control(reply, kind, f"{self.name}: {path}")

    def unreachable(self, error: Exception, late: str = "") -> Unreachable:
        """Returns the error of a connection that failed. `late`: if `error` may have no text."""
        reason = self.exit_reason() or str(error) or late or type(error).__name__
        return Unreachable(f"{self.name}: {reason}", engine_id=self.engine_id)

    def failure(self, status: int, reply: bytes, path: str) -> EngineError:
        refusal = wire.refusal(reply)
        generates = path == GENERATE
        rejected = generates and status in REFUSALS and refusal is not None
        kind = RequestRejected if rejected else EngineUnavailable
        why = f"{self.name}: HTTP {status}" + ("" if generates else f" on {path}")
        text = one_line(refusal or reply[:200].decode(errors="replace"))
        why += f": {text}" if text else ""
        return kind(why, engine_id=self.engine_id, status=status)


def decode_control(body: bytes | msgspec.Raw, kind: type[T], name: str) -> T:
    """Returns JSON decoded as `kind`. Raises EngineUnavailable, with `name` in the message."""
    try:
        return wire.decode(body, kind)
    except wire.Unreadable as error:
        raise EngineUnavailable(f"{name}: {error}") from error


def one_line(text: str) -> str:
    """Returns the first MAX_MESSAGE characters of a server's text in one line."""
    return " ".join(text[:MAX_MESSAGE].split())
