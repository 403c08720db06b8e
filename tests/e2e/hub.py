"""A draft hub in a separate process, and a hostile client of it."""

import asyncio
import contextlib
import os
import signal
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import psutil

from seer_sgl.draft.messages import MAX_ENTRIES, MAX_NUMBER, Delta, Deltas, Done, Open
from seer_sgl.link import contract, messages
from seer_sgl.link.server import PATH
from tests.e2e.conftest import SEER_SGL


class HubProcess:
    """`seer-sgl drafthub` at an address; it can be started and ended many times."""

    def __init__(self, address: str, memory: str, token: str) -> None:
        self.address = address
        self._memory, self._token = memory, token
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None

    async def start(self) -> None:
        """Starts the process and waits until it listens."""
        port = self.address.rpartition(":")[2]
        command = [*SEER_SGL, "drafthub", "--port", port, "--memory", self._memory]
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
async def hub_process(address: str, memory: str, token: str) -> AsyncIterator[HubProcess]:
    """Yields a running HubProcess and ends it at the end."""
    process = HubProcess(address, memory, token)
    try:
        await process.start()
        yield process
    finally:
        if process.running:
            await process.end()


async def attack(address: str, token: str, victims: Iterable[str]) -> None:
    """Attacks a hub with its token; tests/link/test_drafthub.py has frames that nobody can read.

    `victims`: groups that are being rolled out.
    """
    async with stranger(f"http://{address}{PATH}", token) as socket:
        for message in [*absurd(), *poison(victims), *flood()]:
            await socket.send_bytes(messages.encode(message))
        await socket.send_bytes(b"\xc1")
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
