"""The HTTP session of a fleet: kept-alive connections, and request bodies encoded on demand."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from typing_extensions import override

from seer_sgl.config.values import TOKEN, is_token
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import API_KEY

# SGLang's uvicorn closes an idle connection after 5 s; reusing one at that moment loses a request.
KEEPALIVE_S = 4.0
# A request that an idle connection loses so soon was never read, and is sent again on another one.
LOST_AT_ONCE_S = 1.0
# The time of a limit passes in so many slices, each of which waits for the event loop.
SLICES = 8
# Linux socket options: an idle connection is probed after 20 s, then every 10 s. The peer counts as
# gone after three unacknowledged probes, or when sent data is unacknowledged for 50 s (here in ms).
# A connection is given up after 7 s without an answer, since Linux 6.5 after 11 s.
PROBES = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,
    "TCP_SYNCNT": 2,
}
# The scheduler bounds the chunks in flight per engine; this limit only guards against a defect.
MAX_CONNECTIONS = 1 << 16

# Open files that are not connections of chunks: in all, and per engine (its log and control calls).
OTHER_FILES = 48
FILES_PER_ENGINE = 4
# The other connections are idle: they wait KEEPALIVE_S for the next chunk on their engine.
BUSY_SHARE = 0.75


def open_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """Returns the HTTP session that all engines of a fleet share; an async context manager.

    Raises ConfigError for a key that HTTP cannot carry.
    """
    if api_key is not None and not is_token(api_key):
        raise ConfigError(f"{API_KEY} or engines.api_key: {TOKEN}")
    raise_file_limit()
    reuse = aiohttp.TraceConfig()
    reuse.on_connection_reuseconn.append(_reused)
    return aiohttp.ClientSession(
        response_class=Response,
        trace_configs=[reuse],
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S, socket_factory=probing_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None),  # the kernel limits how long it connects
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
    )


class Response(aiohttp.ClientResponse):
    """A response whose connection is not used again after a 5xx: SGLang closes it."""

    @override
    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        await super().start(connection)
        if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and protocol is not None:
            if self.connection is None:  # the whole answer has arrived, and the connection is idle
                protocol.close()
            else:
                protocol.force_close()
        return self


@contextlib.asynccontextmanager
async def requested(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    data: aiohttp.Payload | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Sends a request and yields the response; sends it again if an idle connection loses it.

    Raises what aiohttp raises: of several failures the first.
    """
    loop = asyncio.get_running_loop()
    first: aiohttp.ClientError | None = None
    while True:
        used, began = {"before": False}, loop.time()
        try:
            response = await session.request(
                method, url, data=data, headers=headers, trace_request_ctx=used
            )
            break
        except aiohttp.ClientConnectorError as error:
            raise first or error from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            first = first or error
            if not used["before"] or loop.time() - began > LOST_AT_ONCE_S:
                raise first from error
    async with response:
        yield response


async def _reused(
    _: aiohttp.ClientSession,
    context: SimpleNamespace,
    __: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx["before"] = True


def probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Returns a TCP socket with keep-alive probes.

    The connection of a chunk is silent for minutes. Probes keep firewalls from dropping it, and
    detect a machine that disappeared without closing it.
    """
    family, kind, protocol, *_ = address
    probing = socket.socket(family, kind, protocol)
    probing.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):  # Linux has all of them
            probing.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return probing


def most_chunks(engines: int) -> int:
    """Returns the most chunks that may be in flight by the limit of open files; at least two per
    engine.

    Raises ConfigError if the limit is lower.
    """
    raise_file_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = int((limit - OTHER_FILES - FILES_PER_ENGINE * engines) * BUSY_SHARE)
    if most < 2 * engines:
        raise ConfigError(
            f"the limit of open files, {limit}, is too low for {engines} engines; raise it with "
            "`ulimit -n`"
        )
    return most


def raise_file_limit() -> None:
    """Raises this process's limit of open files to the hard limit.

    Every chunk in flight holds a socket, and the usual soft limit is 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.asynccontextmanager
async def within(within_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but an event loop that stands still loses one slice of the time.

    A loop runs the timers that are due before it reads what has arrived in the meantime. So a
    driver that was held up would blame every server that it waits for.
    """
    async with asyncio.timeout(None) as timeout:
        slices = _Slices(timeout, within_s / SLICES)
        try:
            yield
        finally:
            slices.timer.cancel()  # a handle that is cancelled refers to no callback


class _Slices:
    """Ends a timeout once SLICES times `slice_s` have passed, one after the other."""

    def __init__(self, timeout: asyncio.Timeout, slice_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._slice_s = slice_s
        self._left = SLICES
        self.timer = self._loop.call_later(slice_s, self._passed)  # of the present slice

    def _passed(self) -> None:
        self._left -= 1
        if self._left:
            self.timer = self._loop.call_later(self._slice_s, self._passed)
        else:
            self._timeout.reschedule(self._loop.time())


class LateBody(aiohttp.Payload):
    """A request body that is encoded when it is sent, and not kept afterwards.

    A chunk is in flight for minutes, and its JSON is larger than the tokens themselves.
    """

    _value: Callable[[], bytes]

    def __init__(self, encode: Callable[[], bytes]) -> None:
        super().__init__(encode, content_type="application/json")

    @override
    async def write(self, writer: AbstractStreamWriter) -> None:
        # aiohttp uses chunked transfer, because the length is unknown before.
        await writer.write(self._value())

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value().decode(encoding, errors)


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Returns the body of a response. Raises ClientPayloadError above `limit` bytes."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise aiohttp.ClientPayloadError(f"a reply of more than {limit} bytes")
    return b"".join(pieces)
