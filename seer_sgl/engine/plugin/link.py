"""The engine's end of the link: a WebSocket to the driver in a thread of its own.

Nothing here is ever waited for by decoding. What cannot be sent yet waits in a bounded queue,
oldest out first; the link connects again for ever.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

import aiohttp
import msgspec

from . import frames

logger = logging.getLogger(__name__)
MAX_WAITING = 10_000  # frames
RECONNECT_S = 0.5
HEARTBEAT_S = 10.0


class Link:
    """Connects at once and keeps on. `receive` is called in the link's thread for each frame."""

    def __init__(
        self,
        url: str,
        token: str,
        hello: frames.Hello,
        receive: Callable[[frames.ToEngine], None],
    ) -> None:
        self._url = url
        self._token = token
        self._hello = hello
        self._receive = receive
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._loop = asyncio.new_event_loop()
        self._filled = asyncio.Event()
        threading.Thread(target=self._run, name="seer-sgl link", daemon=True).start()

    def send(self, frame: frames.ToDriver) -> None:
        """Send soon; from any thread, never blocking."""
        self._waiting.append(frames.encode(frame))
        self._loop.call_soon_threadsafe(self._filled.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._keep_connected())

    async def _keep_connected(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                try:
                    async with session.ws_connect(
                        self._url, heartbeat=HEARTBEAT_S, max_msg_size=frames.MAX_FRAME_BYTES
                    ) as socket:
                        await self._converse(socket)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    logger.debug("seer-sgl link: %s", error)
                await asyncio.sleep(RECONNECT_S)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Talk until the socket closes."""
        await socket.send_bytes(frames.encode(self._hello))
        sender = asyncio.create_task(self._send_waiting(socket))
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    with contextlib.suppress(msgspec.DecodeError):  # of a newer driver
                        self._receive(frames.decode_to_engine(message.data))
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

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
            self._filled.clear()
            if not self._waiting:
                await self._filled.wait()
