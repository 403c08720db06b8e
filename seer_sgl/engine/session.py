"""The HTTP session of a fleet: connections that stay, and bodies that are made late."""

import resource
import socket
from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter

# SGLang's uvicorn closes an idle connection after 5 s; reusing one at that moment loses a request.
KEEPALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
# Of a connection without traffic, by names of Linux: a probe after 20 s, then every 10 s; the peer
# is gone when three of them, or data sent 50 s ago (in milliseconds), were not acknowledged.
PROBES = {
    "TCP_KEEPIDLE": 20,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 50_000,
}
# The scheduler bounds the chunks in flight per engine; this only catches a driver gone mad.
MAX_CONNECTIONS = 1 << 16


def open_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """The one session a fleet shares; an async context manager."""
    raise_file_limit()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S, socket_factory=probing_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
    )


def probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A TCP socket whose kernel asks a silent peer for life and gives up one that does not answer.

    A chunk is silent for minutes: firewalls forget its connection, and a machine that went away
    never closes it. Probes keep the first and find the second.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):  # Linux has all of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def raise_file_limit() -> None:
    """Every chunk in flight holds a socket; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class LateBody(aiohttp.Payload):
    """A request body that is encoded when it is written and not kept afterwards.

    A chunk is in flight for minutes; its input as JSON is larger than the tokens themselves.
    """

    _value: Callable[[], bytes]

    def __init__(self, encode: Callable[[], bytes]) -> None:
        super().__init__(encode, content_type="application/json")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the body (chunked, because its length is not known before)."""
        await writer.write(self._value())

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The body as text."""
        return self._value().decode(encoding, errors)


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body. Raises ClientPayloadError if it has more than `limit` bytes."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise aiohttp.ClientPayloadError(f"a reply of more than {limit} bytes")
    return b"".join(pieces)
