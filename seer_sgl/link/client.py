"""The client's end of the link: a WebSocket to the driver or the draft hub, in its own thread.

Decoding in the engine never waits for the link. Unsent messages wait in a bounded queue that drops
the oldest first. The link reconnects until it is closed. A process has one link per address, which
the KV pool and drafting share.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp
import msgspec

from seer_sgl.link import contract
from seer_sgl.timing import DEFAULT, Timing

from . import messages

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_WAITING = 10_000  # frames
MAX_OFFERED = 64  # frames waiting beyond which an offer is declined
HEARTBEAT_S = 10.0

_links: dict[str, "Link"] = {}  # by address


def driver_link(rank: int, ranks: int) -> "Link | None":
    """Returns this process's link to its driver; None without LINK_URL.

    rank: the rank of this scheduler process among the `ranks` of its server.
    """
    return _link_to(os.environ.get(contract.LINK_URL), rank, ranks)


def hub_links(rank: int, ranks: int) -> "list[Link]":
    """Returns this process's links to the draft hubs, in their order; empty without HUB_URL."""
    urls = os.environ.get(contract.HUB_URL, "").split(",")
    links = [_link_to(url or None, rank, ranks) for url in urls]
    return [link for link in links if link is not None]


def _link_to(url: str | None, rank: int, ranks: int) -> "Link | None":
    token = os.environ.get(contract.LINK_TOKEN)
    if url is None or token is None:
        return None
    if url not in _links:
        instance = os.environ.get(contract.INSTANCE, "")
        _links[url] = Link(url, token, messages.Hello(messages.PROTOCOL, instance, rank, ranks))
    return _links[url]


class Link:
    """A connection that opens at once, and reopens whenever it is lost, until `close`.

    `thread` ends soon after that.
    """

    def __init__(
        self, url: str, token: str, hello: messages.Hello, timing: Timing = DEFAULT
    ) -> None:
        self._url = url
        self._token = token
        self._hello = hello
        self._reconnect_s = timing.reconnect_s
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._greeters: list[Callable[[], None]] = []
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._connected = False
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._filled = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="seer-sgl link", daemon=True)
        self.thread.start()

    def on(self, kind: type[T], handler: Callable[[T], None]) -> None:
        """Registers a handler for each received frame of a kind. It runs in the link's thread."""
        self._handlers[kind] = handler

    def on_connect(self, greeter: Callable[[], None]) -> None:
        """Registers a function to call after each connect; calls it now if connected."""
        self._greeters.append(greeter)
        if self._connected:
            greeter()

    def send(self, frame: messages.ToDriver) -> None:
        """Queues a frame, which is sent soon or after the next connect. Thread-safe, never blocks.

        When MAX_WAITING frames wait, the oldest one is dropped.
        """
        self._waiting.append(messages.encode(frame))
        self._wake()

    def offer(self, frame: messages.ToDriver) -> None:
        """Queues a frame, or drops it if the other end is away or slow. Thread-safe, never blocks.

        The caller must send dropped content again itself.
        """
        if self._connected and len(self._waiting) < MAX_OFFERED:
            self.send(frame)

    def close(self) -> None:
        """Disconnects for good, soon. If connected, the link sends its queued frames first."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._filled.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep_connected())
        finally:
            self._closed = True
            self._loop.close()

    async def _keep_connected(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while not self._closed:
                try:
                    async with session.ws_connect(
                        self._url, heartbeat=HEARTBEAT_S, max_msg_size=messages.MAX_FRAME_BYTES
                    ) as socket:
                        await self._converse(socket)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    logger.debug("seer-sgl link: %s", error)
                except Exception:  # of a handler; without this thread, nothing is sent any more
                    logger.exception("seer-sgl link: disconnected")
                await asyncio.sleep(self._reconnect_s)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Sends and receives until the socket closes."""
        await socket.send_bytes(messages.encode(self._hello))
        sender = asyncio.create_task(self._send_waiting(socket))
        self._connected = True
        try:
            for greeter in self._greeters:
                greeter()
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    with contextlib.suppress(msgspec.DecodeError):  # a newer driver's message
                        self._dispatch(messages.decode(message.data, messages.to_engine))
        finally:
            self._connected = False
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _dispatch(self, frame: messages.ToEngine) -> None:
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame)

    async def _send_waiting(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            # A frame that the last socket did not send is the first in the queue.
            while self._waiting:
                frame = self._waiting.popleft()
                try:
                    await socket.send_bytes(frame)
                except BaseException:
                    self._waiting.appendleft(frame)
                    raise
            if self._closed:
                await socket.close()
                return
            self._filled.clear()
            if not self._waiting:
                await self._filled.wait()
