"""The draft hub among sockets: each engine is told what it lacks, as fast as it listens."""

import asyncio
import contextlib
import itertools
import secrets
from array import array
from collections.abc import Iterable, Iterator
from typing import Protocol

from aiohttp import web

from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import (
    TOKEN_BYTES,
    Deltas,
    Done,
    ToHub,
    batched,
    pieces,
    travelling_name,
)

from .plugin import frames
from .plugin.link import Link

FLUSH_S = 0.02  # what comes in so long goes out in one frame an engine


class Drafts(Protocol):
    """The hub as its driver sees it, wherever that is."""

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """A response of an earlier epoch."""

    def done(self, group: str) -> None:
        """A group is complete or given up."""


class DraftHub:
    """A Hub for the sockets of a LinkServer. `memory`: bytes for all tokens."""

    def __init__(self, memory: int) -> None:
        self.hub = Hub(memory // TOKEN_BYTES)
        self._numbers = itertools.count()
        self._awake: dict[str, asyncio.Event] = {}  # by peer
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def joined(self, socket: web.WebSocketResponse, instance: str) -> Iterator[str]:
        """The peer that a socket is, for as long as it is open."""
        peer = f"{instance}#{next(self._numbers)}"  # one that starts again is another
        awake = self._awake[peer] = asyncio.Event()
        writer = asyncio.create_task(self._write(socket, peer, awake))
        try:
            yield peer
        finally:
            writer.cancel()
            del self._awake[peer]
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

    def _wake(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for peer, awake in self._awake.items():
            if self.hub.pending(peer):
                awake.set()

    async def _write(self, socket: web.WebSocketResponse, peer: str, awake: asyncio.Event) -> None:
        """A slow engine holds up its own writer, and what it lacks stays in the hub's logs."""
        with contextlib.suppress(ConnectionError):
            while True:
                await awake.wait()
                awake.clear()
                while (message := self.hub.take(peer)) is not None:
                    await socket.send_bytes(frames.encode(message))


class DistantHub:
    """A draft hub in a process of its own, as its driver uses it; reconnects by itself.

    What it was told of unfinished groups is told again after a reconnect: it may be a new one.
    """

    def __init__(self, url: str, token: str) -> None:
        self._loaded: dict[str, list[tuple[int, array[int]]]] = {}  # by group
        hello = frames.Hello(frames.PROTOCOL, f"driver-{secrets.token_hex(4)}", 0, 1)
        self._link = Link(url, token, hello)
        self._link.on_connect(self._tell_again)

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """A response of an earlier epoch."""
        self._loaded.setdefault(travelling_name(group), []).append((sequence, tokens))
        self._send(travelling_name(group), [(sequence, tokens)])

    def done(self, group: str) -> None:
        """A group is complete or given up."""
        self._loaded.pop(travelling_name(group), None)
        self._link.send(Done([travelling_name(group)]))

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
