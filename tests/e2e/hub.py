"""A draft hub in a separate process, an unreliable connection to it, and a hostile client."""

import asyncio
import contextlib
import os
import random
import signal
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import psutil
from aiohttp import WSMsgType, web

from seer_sgl.draft.messages import MAX_ENTRIES, MAX_NUMBER, Delta, Deltas, Done, Open
from seer_sgl.link import contract, messages
from seer_sgl.link.server import PATH
from tests.e2e.conftest import SEER_SGL

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class HubProcess:
    """`seer-sgl drafthub` on a port; it can be started and ended many times."""

    def __init__(self, port: int, memory: str, token: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self._port, self._memory, self._token = port, memory, token
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None

    async def start(self) -> None:
        """Starts the process and waits until it listens."""
        command = [*SEER_SGL, "drafthub", "--port", str(self._port), "--memory", self._memory]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, contract.LINK_TOKEN: self._token},
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line.decode() == f"draft hub ready on {self.address}\n"

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends the process with a signal. Returns its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        await self._process.communicate()
        status, self._process = self._process.returncode, None
        assert status is not None
        return status

    async def facts(self) -> dict[str, Any]:
        """Returns the hub's own report, and its resident bytes as `rss`."""
        assert self._process is not None
        headers = {"Authorization": f"Bearer {self._token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"http://{self.address}/drafts") as reply,
        ):
            rss = psutil.Process(self._process.pid).memory_info().rss
            return {**await reply.json(), "rss": rss}


@contextlib.asynccontextmanager
async def hub_process(port: int, memory: str, token: str) -> AsyncIterator[HubProcess]:
    """Yields a running HubProcess and ends it at the end."""
    process = HubProcess(port, memory, token)
    try:
        await process.start()
        yield process
    finally:
        if process.running:
            await process.end()


class Relay:
    """A relay between a hub and its clients that drops, doubles and swaps frames both ways.

    A WebSocket itself has none of these faults. But engines do not queue frames for a slow link,
    connections break, and no side may rely on order.
    """

    def __init__(self, hub: str, seed: int) -> None:
        self._hub = f"http://{hub}"
        self._random = random.Random(seed)
        self.open = 0
        self.faults = dict.fromkeys(("dropped", "doubled", "swapped"), 0)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serves one client of the hub; returns status 502 while there is no hub."""
        headers = {"Authorization": request.headers.get("Authorization", "")}
        async with aiohttp.ClientSession(headers=headers) as session:
            try:
                far = await session.ws_connect(
                    self._hub + PATH, max_msg_size=messages.MAX_FRAME_BYTES
                )
            except aiohttp.ClientError:
                return web.Response(status=502)
            near = web.WebSocketResponse(max_msg_size=messages.MAX_FRAME_BYTES, compress=False)
            await near.prepare(request)
            await far.send_bytes(await near.receive_bytes())  # the hello arrives
            self.open += 1
            try:
                ways = [self._carry(near, far), self._carry(far, near)]
                both = [asyncio.ensure_future(way) for way in ways]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for way in both:
                    way.cancel()
                await asyncio.gather(*both, return_exceptions=True)
            finally:
                self.open -= 1
                await near.close()
            return near

    async def facts(self, request: web.Request) -> web.StreamResponse:
        """Returns the hub's own report; status 502 while there is no hub."""
        headers = {"Authorization": request.headers.get("Authorization", "")}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(self._hub + request.path) as reply,
            ):
                body = await reply.read()
                return web.Response(status=reply.status, body=body, content_type=reply.content_type)
        except aiohttp.ClientError:
            return web.Response(status=502)

    async def _carry(self, source: Socket, target: Socket) -> None:
        held: list[bytes] = []  # sent after the next frame
        async for message in source:
            if message.type is not WSMsgType.BINARY:
                continue
            late, held = held, []
            fault = self._random.choices((*self.faults, None), (1, 1, 1, 7))[0]
            if fault is not None:
                self.faults[fault] += 1
            if fault == "swapped":
                held = [message.data]
            copies = {"dropped": 0, "swapped": 0, "doubled": 2}.get(fault or "", 1)
            for frame in [*[message.data] * copies, *late]:
                await target.send_bytes(frame)


@contextlib.asynccontextmanager
async def relay(port: int, hub: str, seed: int) -> AsyncIterator[Relay]:
    """Yields a Relay that listens on a port."""
    between = Relay(hub, seed)
    app = web.Application()
    app.router.add_get(PATH, between.serve)
    app.router.add_get("/drafts", between.facts)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield between
    finally:
        await runner.cleanup()


GARBAGE = [
    b"\xc1",
    bytes(1000),
    messages.encode(Deltas([Delta("g", -1, 0, b"abcd")])),
    messages.encode(Open({"g": {0: MAX_NUMBER + 1}})),
    messages.encode(Deltas([Delta("g", 0, 0, bytes(2 * messages.MAX_FRAME_BYTES))])),
]


async def attack(address: str, token: str, victims: Iterable[str]) -> None:
    """Attacks a hub without its token, and with it.

    `victims`: groups that are being rolled out.
    """
    url = f"http://{address}{PATH}"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
            assert reply.status == 401
    for garbage in GARBAGE:
        async with stranger(url, token) as socket:
            await socket.send_bytes(garbage)
            while not socket.closed:
                await socket.receive()
    async with stranger(url, token) as socket:
        for message in [*absurd(), *poison(victims), *flood()]:
            await socket.send_bytes(messages.encode(message))
        await socket.send_bytes(GARBAGE[0])
        while not socket.closed:  # the hub has then read all earlier messages
            await socket.receive()


@contextlib.asynccontextmanager
async def stranger(url: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Yields a socket with the token, after the hello message."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(url, max_msg_size=messages.MAX_FRAME_BYTES) as socket,
    ):
        await socket.send_bytes(
            messages.encode(messages.Hello(messages.PROTOCOL, "stranger", 0, 1))
        )
        yield socket


def absurd() -> list[messages.ToDriver]:
    """Returns well-formed messages with impossible contents."""
    return [
        Open({"absurd": dict.fromkeys(range(4096), MAX_NUMBER)}),
        Deltas([Delta("absurd", 0, MAX_NUMBER, b"abcd")]),
        Deltas([Delta("absurd", n, 0, b"") for n in range(MAX_ENTRIES)]),
        Deltas([Delta("absurd", 0, 0, b"abc")]),
        Done([f"never {n}" for n in range(MAX_ENTRIES)]),
    ]


def poison(victims: Iterable[str]) -> list[messages.ToDriver]:
    """Returns false tokens for existing sequences; some are outside the vocabulary."""
    tokens = array("i", [*range(40), 1 << 30, -1]).tobytes()
    parts = [Delta(name, n, at, tokens) for name in victims for n in (0, 1, 99) for at in (0, 7)]
    return [Deltas(parts)] if parts else []


def flood() -> list[messages.ToDriver]:
    """Returns messages for far more groups than a hub stores."""
    names = [f"flood {n}" for n in range(2 * MAX_ENTRIES)]
    batches = [names[:MAX_ENTRIES], names[MAX_ENTRIES:]]
    opened = [Open({f"{name} {i}": {} for name in batch}) for batch in batches for i in range(3)]
    deltas = [Deltas([Delta(name, 0, 0, bytes(20)) for name in batch]) for batch in batches]
    return [*opened, *deltas]
