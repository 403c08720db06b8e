"""The draft hub among sockets: each engine is told what it lacks, as fast as it listens."""

import asyncio
import contextlib
import itertools
import secrets
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Protocol
from urllib.parse import urljoin

import aiohttp
from aiohttp import web

from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import (
    TOKEN_BYTES,
    Deltas,
    Done,
    ToHub,
    batched,
    pieces,
    wire_name,
)
from seer_sgl.draft.waits import Waits

from . import messages
from .client import Link

FACTS = "/drafts"  # where a hub tells of itself, in JSON
FACTS_TIMEOUT_S = 2.0
FLUSH_S = 0.02  # what comes in so long goes out in one frame an engine


class Drafts(Protocol):
    """The hub as its driver sees it, wherever that is."""

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """A response of an earlier epoch."""

    def done(self, group: str) -> None:
        """A group is complete or given up."""

    async def facts(self) -> dict[str, Any] | None:
        """Its counters (`DraftHub.counted`); None while it is away."""


class _Reader:
    """An engine that is told something. `due`: since when there is something to tell."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.due: float | None = None


class DraftHub:
    """A Hub for the sockets of a LinkServer. `memory`: bytes for all tokens."""

    def __init__(self, memory: int) -> None:
        self.hub = Hub(memory // TOKEN_BYTES)
        self._numbers = itertools.count()
        self._instance = secrets.token_hex(4)
        self._readers: dict[str, _Reader] = {}  # by peer
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0  # the first that was heard since the last flush
        self._lag = Waits()

    @contextlib.contextmanager
    def joined(self, socket: web.WebSocketResponse, instance: str) -> Iterator[str]:
        """The peer that a socket is, for as long as it is open."""
        peer = f"{instance}#{next(self._numbers)}"  # one that starts again is another
        reader = self._readers[peer] = _Reader()
        writer = asyncio.create_task(self._write(socket, peer, reader))
        try:
            yield peer
        finally:
            writer.cancel()
            del self._readers[peer]
            self.hub.left(peer)

    def heard(self, peer: str, message: ToHub) -> None:
        """An engine said this."""
        self.hub.receive(peer, message)
        self._wake()

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """A response of an earlier epoch."""
        self.hub.load(group, sequence, tokens)
        self._wake()

    def done(self, group: str) -> None:
        """A group is complete or given up."""
        self.hub.done(group)
        self._wake()

    def counted(self) -> dict[str, Any]:
        """Counters since it began, and which start of it this is.

        `lag`: of each message of tokens, from when the oldest of what it tells may have come in to
        when it was handed to the socket. No clock but this one, so without the way to here and on.
        """
        return {"instance": self._instance, **self.hub.facts(), "lag": self._lag.facts()}

    async def facts(self) -> dict[str, Any] | None:
        """Its counters."""
        return self.counted()

    def _wake(self) -> None:
        if self._timer is None:
            self._heard_at = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for peer, reader in self._readers.items():
            if self.hub.pending(peer):
                if reader.due is None:
                    reader.due = self._heard_at
                reader.awake.set()

    async def _write(self, socket: web.WebSocketResponse, peer: str, reader: _Reader) -> None:
        """A slow engine holds up its own writer, and what it lacks stays in the hub's logs."""
        with contextlib.suppress(ConnectionError):
            while True:
                await reader.awake.wait()
                reader.awake.clear()
                while (message := self.hub.take(peer)) is not None:
                    # Without a `due` it came in since the last flush, and the timer runs.
                    due = self._heard_at if reader.due is None else reader.due
                    reader.due = due if self.hub.pending(peer) else None
                    await socket.send_bytes(messages.encode(message))
                    if isinstance(message, Deltas):
                        self._lag.observe(time.monotonic() - due)
                reader.due = None


class DistantHub:
    """A draft hub in a process of its own, as its driver uses it; reconnects by itself.

    What it was told of unfinished groups is told again after a reconnect: it may be a new one.
    """

    def __init__(self, url: str, token: str) -> None:
        self._loaded: dict[str, list[tuple[int, array[int]]]] = {}  # by group
        self._facts_url = urljoin(url, FACTS)
        self._headers = {"Authorization": f"Bearer {token}"}
        hello = messages.Hello(messages.PROTOCOL, f"driver-{secrets.token_hex(4)}", 0, 1)
        self._link = Link(url, token, hello)
        self._link.on_connect(self._tell_again)

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """A response of an earlier epoch."""
        self._loaded.setdefault(wire_name(group), []).append((sequence, tokens))
        self._send(wire_name(group), [(sequence, tokens)])

    def done(self, group: str) -> None:
        """A group is complete or given up."""
        self._loaded.pop(wire_name(group), None)
        self._link.send(Done([wire_name(group)]))

    async def facts(self) -> dict[str, Any] | None:
        """Its counters; None while it is away."""
        timeout = aiohttp.ClientTimeout(total=FACTS_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.get(self._facts_url) as reply,
            ):
                said: Any = await reply.json()
                return said if reply.status == 200 and isinstance(said, dict) else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    def close(self) -> None:
        """No more of it."""
        self._link.close()

    def _tell_again(self) -> None:
        """In the link's thread."""
        for group, loaded in list(self._loaded.items()):
            self._send(group, list(loaded))

    def _send(self, group: str, loaded: Iterable[tuple[int, "array[int]"]]) -> None:
        parts = (part for sequence, tokens in loaded for part in pieces(group, sequence, tokens, 0))
        for batch in batched(parts):
            self._link.send(Deltas(batch.deltas))
