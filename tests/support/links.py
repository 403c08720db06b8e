"""An engine's end of the link, and what a server passes on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from seer_sgl.draft.messages import Deltas, Done, Want
from seer_sgl.link import messages
from seer_sgl.link.client import Link
from seer_sgl.link.messages import Forget, Hello
from seer_sgl.link.server import LinkServer
from tests.support.timing import SOON
from tests.support.waiting import DEADLINE_S, until


class Engine(Link):
    """An engine's end of the link, with a flag for its connection."""

    def __init__(self, url: str, token: str, hello: Hello) -> None:
        self.received: list[messages.ToEngine] = []
        self.talks = False
        super().__init__(url, token, hello, SOON)
        self.on(Forget, self.received.append)
        self.on(Deltas, self.received.append)
        self.on(Want, self.received.append)
        self.on(Done, self.received.append)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.talks = True
        try:
            await super()._converse(socket)
        finally:
            self.talks = False


@asynccontextmanager
async def engine(
    server: LinkServer, instance: str = "one", rank: int = 0, ranks: int = 1
) -> AsyncIterator[Engine]:
    """Opens the link of an engine's scheduler process; the driver may start later."""
    made = Engine(server.url, server.token, Hello(messages.PROTOCOL, instance, rank, ranks))
    try:
        yield made
    finally:
        made.close()
        await until(lambda: not made.thread.is_alive())


@asynccontextmanager
async def raw_socket(
    server: LinkServer, *frames: messages.ToDriver
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Opens a socket that is authorized, has sent the frames, and can send any bytes."""
    headers = {"Authorization": f"Bearer {server.token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(server.url) as socket,
    ):
        for frame in frames:
            await socket.send_bytes(messages.encode(frame))
        yield socket


async def closed(socket: aiohttp.ClientWebSocketResponse) -> bool:
    """Returns whether the server's next message closes the socket."""
    message = await socket.receive(DEADLINE_S)
    return message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
