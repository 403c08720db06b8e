"""The draft hub's socket side: sends each engine the tokens it lacks, as fast as it reads."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from seer_sgl.draft.hub import Hub
from seer_sgl.draft.messages import (
    TOKEN_BYTES,
    Deltas,
    ToHub,
)
from seer_sgl.draft.waits import Waits

from . import messages

FACTS = "/drafts"  # the path of a hub's counters, in JSON
FLUSH_S = 0.02  # the messages received in this time go out in one frame per engine


class _Reader:
    """An engine that reads messages. `due`: since when a message waits for it."""

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
        self._first_at = 0.0  # the first message since the last flush
        self._lag = Waits()

    @contextlib.contextmanager
    def joined(self, socket: web.WebSocketResponse, instance: str) -> Iterator[str]:
        """Registers an engine's socket for the block; yields the name of the peer."""
        peer = f"{instance}#{next(self._numbers)}"  # an engine that reconnects is a new peer
        reader = self._readers[peer] = _Reader()
        writer = asyncio.create_task(self._write(socket, peer, reader))
        try:
            yield peer
        finally:
            writer.cancel()
            del self._readers[peer]
            self.hub.left(peer)

    def received(self, peer: str, message: ToHub) -> None:
        """Processes a message from an engine or from the driver."""
        self.hub.receive(peer, message)
        self._wake()

    def counted(self) -> dict[str, Any]:
        """Returns the hub's counters since its start, and its instance.

        `lag`: the time from the arrival of a message's oldest token to its hand-over to the socket,
        at most. It is measured with this process's clock only, so without network time.
        """
        return {"instance": self._instance, **self.hub.facts(), "lag": self._lag.facts()}

    def _wake(self) -> None:
        if self._timer is None:
            self._first_at = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for peer, reader in self._readers.items():
            if self.hub.pending(peer):
                if reader.due is None:
                    reader.due = self._first_at
                reader.awake.set()

    async def _write(self, socket: web.WebSocketResponse, peer: str, reader: _Reader) -> None:
        """Sends pending messages to one engine.

        A slow engine delays only its own writer; its pending tokens stay in the hub's logs.
        """
        with contextlib.suppress(ConnectionError):
            while True:
                await reader.awake.wait()
                reader.awake.clear()
                while (message := self.hub.take(peer)) is not None:
                    # Without a `due`, the message arrived after the last flush.
                    due = self._first_at if reader.due is None else reader.due
                    reader.due = due if self.hub.pending(peer) else None
                    await socket.send_bytes(messages.encode(message))
                    if isinstance(message, Deltas):
                        self._lag.observe(time.monotonic() - due)
                reader.due = None
