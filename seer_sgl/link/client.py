"""The client's end of the link: a WebSocket to the driver or the draft hub, in its own thread.

Decoding never waits for anything here. What cannot be sent yet waits in a bounded queue,
oldest out first; the link connects again for ever. A process has one link to each address, which
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

from . import messages

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_WAITING = 10_000  # frames
MAX_OFFERED = 64  # frames waiting beyond which an offer is declined
RECONNECT_S = 0.5
HEARTBEAT_S = 10.0

_links: dict[str, "Link"] = {}  # by address


def driver_link(rank: int, ranks: int) -> "Link | None":
    """Returns this process's link to its driver; None without LINK_URL.

    rank: of this scheduler process among the `ranks` of its server.
    """
    return _link_to(os.environ.get(contract.LINK_URL), rank, ranks)


def hub_link(rank: int, ranks: int) -> "Link | None":
    """Returns this process's link to the draft hub; None without HUB_URL."""
    return _link_to(os.environ.get(contract.HUB_URL), rank, ranks)


def _link_to(url: str | None, rank: int, ranks: int) -> "Link | None":
    token = os.environ.get(contract.LINK_TOKEN)
    if url is None or token is None:
        return None
    if url not in _links:
        instance = os.environ.get(contract.INSTANCE, "")
        _links[url] = Link(url, token, messages.Hello(messages.PROTOCOL, instance, rank, ranks))
    return _links[url]


class Link:
    """A connection that is opened at once, and again whenever it is lost, until `close`."""

    def __init__(self, url: str, token: str, hello: messages.Hello) -> None:
        self._url = url
        self._token = token
        self._hello = hello
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._greeters: list[Callable[[], None]] = []
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._connected = False
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._filled = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="seer-sgl link", daemon=True)
        self._thread.start()

    def on(self, kind: type[T], handler: Callable[[T], None]) -> None:
        """From now on `handler` is called with each frame of a kind, in the link's thread."""
        self._handlers[kind] = handler

    def on_connect(self, greeter: Callable[[], None]) -> None:
        """`greeter` is called after each connect, and now if there is a connection."""
        self._greeters.append(greeter)
        if self._connected:
            greeter()

    def send(self, frame: messages.ToDriver) -> None:
        """Send soon, or after the next connect; from any thread, never blocking."""
        self._waiting.append(messages.encode(frame))
        self._wake()

    def offer(self, frame: messages.ToDriver) -> None:
        """Send soon, or never: the sender makes good what is lost while the other end is away or
        slow. From any thread, never blocking."""
        if self._connected and len(self._waiting) < MAX_OFFERED:
            self.send(frame)

    def close(self) -> None:
        """Disconnect for good, soon, after what waits has been sent if there is a connection."""
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
                await asyncio.sleep(RECONNECT_S)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send and receive until the socket closes."""
        await socket.send_bytes(messages.encode(self._hello))
        sender = asyncio.create_task(self._send_waiting(socket))
        self._connected = True
        try:
            for greeter in self._greeters:
                greeter()
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    with contextlib.suppress(msgspec.DecodeError):  # of a newer driver
                        self._dispatch(messages.decode_to_engine(message.data))
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
            # What the last socket did not take is first.
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
