"""What a draft hub reports, and a hostile client of it."""

import contextlib
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import psutil

from seer_sgl.draft.messages import MAX_ENTRIES, MAX_NUMBER, Delta, Deltas, Done, Open
from seer_sgl.link import messages
from seer_sgl.link.server import PATH


async def facts(address: str, token: str, pid: int) -> dict[str, Any]:
    """Returns a hub's own report, and the resident bytes of its process as `rss`."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.get(f"http://{address}/drafts") as reply,
    ):
        rss = psutil.Process(pid).memory_info().rss
        return {**await reply.json(), "rss": rss}


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
