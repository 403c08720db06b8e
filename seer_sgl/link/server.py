"""The driver's end of the link: a WebSocket server for the plugins of its engines.

The draft hub is such a server as well, in a process of its own.

On loopback by default, and never without a token. An engine may come and go; nothing is lost by
that but acknowledgements, and a chunk without one is placed where its KV is.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import WSMsgType, web

from seer_sgl.errors import ConfigError
from seer_sgl.link import contract

from . import messages
from .drafthub import FACTS, DraftHub

logger = logging.getLogger(__name__)
PATH = "/link"
HEARTBEAT_S = 10.0
MAX_PARTIAL = 100_000  # calls of which only some ranks have reported
# Tokens per second that one engine can prefill or read from a pool: a slow CPU to a rack of GPUs,
# with three orders of magnitude to spare on both sides. NaN lies outside any bounds.
LEAST_TOK_S, MOST_TOK_S = 1e-3, 1e10

# Called with the id of a /generate call and whether all of its KV is in the pool.
OnStored = Callable[[str, bool], None]
OnRates = Callable[[messages.Rates], None]


def link_url(address: str) -> str:
    """Returns the URL of the link of a driver or hub that listens at `address` (host:port)."""
    return f"http://{address}{PATH}"


def shared_token(peer: str, key: str = "engines.link") -> str:
    """Returns the token of a link whose ends are started apart. `peer`: what the other end is;
    `key`: the config key that asks for the link.

    Raises ConfigError when the environment has none.
    """
    token = os.environ.get(contract.LINK_TOKEN)
    if not token:
        raise ConfigError(f"{key}: set {contract.LINK_TOKEN}, the same here and for the {peer}")
    return token


class LinkServer:
    """The server of the link. Frames of engines go to `on_stored`, `on_rates` and `drafts`.

    `drafts`: the hub, in the hub's process; a driver has none.
    """

    def __init__(self, token: str | None = None, drafts: DraftHub | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.address = ""  # host:port
        self.url = ""
        self.drafts = drafts
        self.on_stored: OnStored = lambda *_: None
        self.on_rates: OnRates = lambda _: None
        self._sending: set[asyncio.Task[None]] = set()
        self._sockets: dict[str, dict[int, web.WebSocketResponse]] = {}  # by instance and rank
        self._hello = asyncio.Event()  # set when one arrives
        self._ranks: dict[str, int] = {}  # how many there are, by instance
        self._partial: OrderedDict[str, dict[int, messages.Stored]] = OrderedDict()

    def linked(self, instance: str) -> bool:
        """Whether every rank of an engine is connected."""
        return len(self._sockets.get(instance, ())) == self._ranks.get(instance)

    async def until_linked(self, instance: str) -> None:
        """Wait for every rank of an engine."""
        while not self.linked(instance):
            self._hello.clear()
            await self._hello.wait()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One scheduler process, from its hello to its end."""
        if not self._invited(request):
            return _not_invited()
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=messages.MAX_FRAME_BYTES, compress=False
        )
        await socket.prepare(request)
        with contextlib.ExitStack() as stack:
            await self._listen(socket, stack)
        await socket.close()
        return socket

    async def facts(self, request: web.Request) -> web.StreamResponse:
        """The counters of the draft hub."""
        if not self._invited(request):
            return _not_invited()
        return web.json_response(self.drafts.counted() if self.drafts is not None else None)

    def _invited(self, request: web.Request) -> bool:
        offered = request.headers.get("Authorization", "").encode(errors="replace")
        return hmac.compare_digest(offered, f"Bearer {self.token}".encode())

    async def _listen(self, socket: web.WebSocketResponse, stack: contextlib.ExitStack) -> None:
        """Receive frames of a scheduler process until one is invalid or the socket closes."""
        hello: messages.Hello | None = None
        peer: str | None = None  # of the draft hub, of which each engine has one
        try:
            async for message in socket:
                if message.type is not WSMsgType.BINARY:
                    continue
                frame = messages.decode_to_driver(message.data)
                if isinstance(frame, messages.Hello):
                    problem = "a second hello" if hello is not None else self._problem(frame)
                    if problem is not None:
                        logger.warning("a connection to the link is refused: %s", problem)
                        break
                    hello = frame
                    self._sockets.setdefault(hello.instance, {})[hello.rank] = socket
                    self._ranks[hello.instance] = hello.ranks
                    self._hello.set()
                    if self.drafts is not None and hello.rank == 0:
                        peer = stack.enter_context(self.drafts.joined(socket, hello.instance))
                elif hello is None:
                    continue
                elif isinstance(frame, messages.Rates):
                    self._measured(frame)
                elif isinstance(frame, messages.Stored):
                    self._stored(frame, hello)
                elif self.drafts is not None and peer is not None:
                    self.drafts.received(peer, frame)
        except msgspec.DecodeError as error:
            logger.warning("unreadable frame on the link: %s", error)
        finally:
            if hello is not None:
                self._left(hello, socket)

    def _left(self, hello: messages.Hello, socket: web.WebSocketResponse) -> None:
        """A socket has closed; with its last one an engine is forgotten."""
        sockets = self._sockets.get(hello.instance, {})
        if sockets.get(hello.rank) is socket:
            del sockets[hello.rank]
            if not sockets:
                del self._sockets[hello.instance], self._ranks[hello.instance]

    def _problem(self, hello: messages.Hello) -> str | None:
        """Why a hello cannot be accepted.

        The driver waits for every rank, so a false number would hold up or invent acknowledgements.
        """
        if hello.protocol != messages.PROTOCOL:
            return f"it speaks protocol {hello.protocol}"
        connected = self._sockets.get(hello.instance)
        if connected and self._ranks[hello.instance] != hello.ranks:
            return f"{hello.ranks} ranks, of which others count {self._ranks[hello.instance]}"
        return None if 0 <= hello.rank < hello.ranks else f"rank {hello.rank} of {hello.ranks}"

    def _measured(self, rates: messages.Rates) -> None:
        """Pass rates on if an engine can have measured them.

        One frame of nonsense would stay in the running means that place every request.
        """
        if _plausible(rates.prefill_tokens, rates.prefill_s) and _plausible(
            rates.fetch_tokens, rates.fetch_s
        ):
            self.on_rates(rates)

    def _stored(self, frame: messages.Stored, hello: messages.Hello) -> None:
        """Pass an acknowledgement on once every rank has given it: each stores its own part."""
        parts = self._partial.setdefault(frame.rid, {})
        parts[hello.rank] = frame
        if len(parts) < hello.ranks:
            if len(self._partial) > MAX_PARTIAL:
                self._partial.popitem(last=False)
            return
        del self._partial[frame.rid]
        self.on_stored(frame.rid, all(part.whole for part in parts.values()))

    def forget(self, instance: str, uid: str, keep: int) -> None:
        """Send every rank of an engine that a request's KV beyond `keep` tokens is not needed."""
        frame = messages.encode(messages.Forget(uid, keep))
        for socket in self._sockets.get(instance, {}).values():
            task = asyncio.create_task(_send(socket, frame))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)


def _plausible(tokens: int, seconds: float) -> bool:
    if tokens == 0:
        return True  # nothing was measured
    return min(tokens, seconds) > 0 and LEAST_TOK_S <= tokens / seconds <= MOST_TOK_S


def _not_invited() -> web.Response:
    return web.json_response({"error": {"message": "no token"}}, status=401)


async def _send(socket: web.WebSocketResponse, frame: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(frame)


@contextlib.asynccontextmanager
async def open_link(
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    drafts: DraftHub | None = None,
) -> AsyncIterator[LinkServer]:
    """Listen on `host`, by default on a free port and with a token of its own.

    Raises OSError when it cannot listen there.
    """
    server = LinkServer(token, drafts)
    app = web.Application()
    app.router.add_get(PATH, server.serve)
    app.router.add_get(FACTS, server.facts)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        port = runner.addresses[0][1]
        server.address = f"{host}:{port}"
        server.url = link_url(server.address)
        yield server
    finally:
        await runner.cleanup()
