"""The driver's end of the link: a WebSocket server for the plugins of its engines.

The draft hub uses the same server in its own process. The server listens on loopback by default,
and always requires a token. If an engine disconnects, only acknowledgements are lost: a request
without one stays on the engine that has its KV.
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

from seer_sgl.config.values import TOKEN, is_token
from seer_sgl.errors import ConfigError
from seer_sgl.link import contract

from . import messages
from .drafthub import FACTS, DraftHub

logger = logging.getLogger(__name__)
PATH = "/link"
HEARTBEAT_S = 10.0
MAX_PARTIAL = 10_000  # calls that some ranks, but not all, have reported
MAX_RID = 8192  # characters of a call's id; a longer one is not from a driver
# Bounds for tokens per second that one engine can prefill or read from a pool: from a slow CPU to a
# rack of GPUs, with a margin of three orders of magnitude. NaN is outside any bounds.
LEAST_TOK_S, MOST_TOK_S = 1e-3, 1e10

# Called with the id of a /generate call and whether all of its KV is in the pool.
OnStored = Callable[[str, bool], None]
OnRates = Callable[[messages.Rates], None]


def link_url(address: str) -> str:
    """Returns the URL of the link of a driver or hub that listens at `address` (host:port)."""
    return f"http://{address}{PATH}"


def link_urls(addresses: str) -> str:
    """Returns the URLs of hubs at `addresses` (host:port), both separated by commas."""
    return ",".join(link_url(address.strip()) for address in addresses.split(","))


def shared_token(peer: str, key: str = "engines.link") -> str:
    """Returns the token of a link whose two ends are started separately, from the environment.

    `peer`: the name of the other end. `key`: the config key that requires the link. Raises
    ConfigError if the environment has no token, or one that HTTP cannot carry.
    """
    token = os.environ.get(contract.LINK_TOKEN)
    if not token:
        raise ConfigError(f"{key}: set {contract.LINK_TOKEN}, the same value as for the {peer}")
    if not is_token(token):
        raise ConfigError(f"{contract.LINK_TOKEN}: {TOKEN}")
    return token


class LinkServer:
    """The server of the link. Passes the engines' frames to `on_stored`, `on_rates` and `drafts`.

    `drafts`: the hub, in the hub's process; None in a driver.
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
        self._hello = asyncio.Event()  # set when a hello arrives
        self._ranks: dict[str, int] = {}  # the number of ranks, by instance
        self._partial: OrderedDict[str, dict[int, messages.KvStored]] = OrderedDict()

    def linked(self, instance: str) -> bool:
        """Returns whether every rank of an engine is connected."""
        return len(self._sockets.get(instance, ())) == self._ranks.get(instance)

    async def until_linked(self, instance: str) -> None:
        """Waits until every rank of an engine is connected."""
        while not self.linked(instance):
            self._hello.clear()
            await self._hello.wait()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serves the socket of one scheduler process, from its hello until it closes."""
        if not self._authorized(request):
            return _unauthorized()
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=messages.MAX_FRAME_BYTES, compress=False
        )
        await socket.prepare(request)
        with contextlib.ExitStack() as stack:
            await self._listen(socket, stack)
        await socket.close()
        return socket

    async def facts(self, request: web.Request) -> web.StreamResponse:
        """Returns the counters of the draft hub in JSON; null in a driver."""
        if not self._authorized(request):
            return _unauthorized()
        return web.json_response(self.drafts.counted() if self.drafts is not None else None)

    def _authorized(self, request: web.Request) -> bool:
        offered = request.headers.get("Authorization", "").encode(errors="replace")
        return hmac.compare_digest(offered, f"Bearer {self.token}".encode())

    async def _listen(self, socket: web.WebSocketResponse, stack: contextlib.ExitStack) -> None:
        """Receives frames of a scheduler process until one is invalid or the socket closes."""
        hello: messages.Hello | None = None
        peer: str | None = None  # the engine's name in the draft hub; rank 0 registers it
        try:
            async for message in socket:
                if message.type is not WSMsgType.BINARY:
                    continue
                frame = messages.decode(message.data, messages.to_driver)
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
                elif isinstance(frame, messages.KvStored):
                    self._stored(frame, hello)
                elif self.drafts is not None and peer is not None:
                    self.drafts.received(peer, frame)
        except msgspec.DecodeError as error:
            logger.warning("unreadable frame on the link: %s", error)
        finally:
            if hello is not None:
                self._left(hello, socket)

    def _left(self, hello: messages.Hello, socket: web.WebSocketResponse) -> None:
        """Removes a closed socket, and with the last one its engine."""
        sockets = self._sockets.get(hello.instance, {})
        if sockets.get(hello.rank) is socket:
            del sockets[hello.rank]
            if not sockets:
                del self._sockets[hello.instance], self._ranks[hello.instance]

    def _problem(self, hello: messages.Hello) -> str | None:
        """Returns the reason to refuse a hello; None if it is valid.

        An acknowledgement is complete when every rank has sent it. So a wrong number of ranks would
        delay or falsify acknowledgements.
        """
        if hello.protocol != messages.PROTOCOL:
            return f"it uses protocol {hello.protocol}"
        connected = self._sockets.get(hello.instance)
        if connected and self._ranks[hello.instance] != hello.ranks:
            return f"{hello.ranks} ranks, but other ranks report {self._ranks[hello.instance]}"
        return None if 0 <= hello.rank < hello.ranks else f"rank {hello.rank} of {hello.ranks}"

    def _measured(self, rates: messages.Rates) -> None:
        """Passes rates on if they are plausible.

        A single wrong frame would stay in the running means that determine placement.
        """
        if _plausible(rates.prefill_tokens, rates.prefill_s) and _plausible(
            rates.fetch_tokens, rates.fetch_s
        ):
            self.on_rates(rates)

    def _stored(self, frame: messages.KvStored, hello: messages.Hello) -> None:
        """Passes an acknowledgement on once every rank has sent it: each stores its own part."""
        if len(frame.rid) > MAX_RID:
            return
        parts = self._partial.setdefault(frame.rid, {})
        parts[hello.rank] = frame
        if len(parts) < hello.ranks:
            if len(self._partial) > MAX_PARTIAL:
                self._partial.popitem(last=False)
            return
        del self._partial[frame.rid]
        self.on_stored(frame.rid, all(part.complete for part in parts.values()))

    def forget(self, instance: str, uid: str, keep: int) -> None:
        """Notifies every rank of an engine that a request's KV beyond `keep` tokens is free."""
        frame = messages.encode(messages.Forget(uid, keep))
        for socket in self._sockets.get(instance, {}).values():
            task = asyncio.create_task(_send(socket, frame))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)


def _plausible(tokens: int, seconds: float) -> bool:
    if tokens == 0:
        return True  # nothing was measured
    return min(tokens, seconds) > 0 and LEAST_TOK_S <= tokens / seconds <= MOST_TOK_S


def _unauthorized() -> web.Response:
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
    """Opens a link server on `host`, by default on a free port and with a new token.

    Raises OSError if it cannot listen there.
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
