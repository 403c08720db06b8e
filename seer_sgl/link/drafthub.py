"""The draft hub among sockets: each engine is sent what it lacks, as fast as it reads."""

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

FACTS = "/drafts"  # path of the counters of a hub, in JSON
FLUSH_S = 0.02  # what comes in so long goes out in one frame an engine


class _Reader:
    """An engine that is sent messages. `due`: since when there is something to send."""

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

    def received(self, peer: str, message: ToHub) -> None:
        """A message of an engine or of the driver arrived."""
        self.hub.receive(peer, message)
        self._wake()

    def counted(self) -> dict[str, Any]:
        """Counters since it began, and which start of it this is.

        `lag`: of each message of tokens, from when the oldest of its tokens may have come in to
        when it was handed to the socket. No clock but this one, so without the way to here and on.
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
        """A slow engine holds up its own writer, and what it lacks stays in the hub's logs."""
        with contextlib.suppress(ConnectionError):
            while True:
                await reader.awake.wait()
                reader.awake.clear()
                while (message := self.hub.take(peer)) is not None:
                    # Without a `due` it came in since the last flush, and the timer runs.
                    due = self._first_at if reader.due is None else reader.due
                    reader.due = due if self.hub.pending(peer) else None
                    await socket.send_bytes(messages.encode(message))
                    if isinstance(message, Deltas):
                        self._lag.observe(time.monotonic() - due)
                reader.due = None
