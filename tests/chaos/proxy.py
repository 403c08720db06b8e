"""A TCP proxy whose connections can be slow, silent, cut, reset or half-closed."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator

PIECE = 1 << 16
GONE = (OSError, RuntimeError)  # a connection that has just closed; uvloop raises the second
LINGER = struct.pack("ii", 1, 0)  # closing the socket resets the connection


class _Connection:
    """One connection: `near` leads to the client, `far` to the target."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.silent = False  # for good: nothing passes, and nobody learns of it
        self.half_closed = False  # the client has read the end; the target does not know

    def abort(self, *, reset: bool = False) -> None:
        """Closes both ends at once."""
        for end in (self.near, self.far):
            if reset:
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            end.transport.abort()


class Proxy:
    """A proxy on a free loopback port. `target`: host and port, which may change.

    `counts`: connections, and pieces of data that were `delayed`, `held` or `dropped`. The methods
    that disturb return the number of connections that they met.
    """

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.address = ""  # host:port
        self.counts: Counter[str] = Counter()
        self._open: set[_Connection] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay_s = 0.0
        self._dropping = False

    def __len__(self) -> int:
        return len(self._open)

    async def slow(self, seconds: float, delay_s: float) -> int:
        """Delays each piece of data for a while, both ways."""
        before, self._delay_s = self._delay_s, delay_s
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delay_s = before
        return len(self._open)

    async def cut(self, seconds: float) -> int:
        """Lets nothing pass for a while; then all of it arrives, as TCP repeats it."""
        met = len(self._open)
        self._passing.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._passing.set()
        return met

    async def drop(self, seconds: float) -> int:
        """Swallows all data for a while. Connections of this time stay open and silent for good."""
        self._dropping = True
        met = set(self._open)
        try:
            for connection in met:
                connection.silent = True
            await asyncio.sleep(seconds)
        finally:
            self._dropping = False
        return len(met)

    def reset(self) -> int:
        """Resets all connections, both ways."""
        met = list(self._open)
        for connection in met:
            connection.abort(reset=True)
        return len(met)

    def half_close(self) -> int:
        """Closes the way to the client of each connection; the other way stays open."""
        met = list(self._open)
        for connection in met:
            connection.half_closed = True
            with contextlib.suppress(*GONE):
                connection.near.write_eof()
        return len(met)

    async def serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        """Serves one connection. While the target does not listen, it is reset."""
        connection: _Connection | None = None
        try:
            assert self.target is not None
            source, far = await asyncio.open_connection(*self.target)
            connection = _Connection(near, far)
            connection.silent = self._dropping
            self.counts["connections"] += 1
            self._open.add(connection)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(connection, reader, far))
                ways.create_task(self._carry(connection, source, near))
        except OSError:
            pass  # the target does not listen
        finally:
            if connection is None:
                near.transport.abort()
            else:
                connection.abort()
                self._open.discard(connection)

    async def _carry(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        to_client = sink is connection.near
        try:
            while piece := await source.read(PIECE):
                if self._delay_s:
                    self.counts["delayed"] += 1
                    await asyncio.sleep(self._delay_s)
                if not self._passing.is_set():
                    self.counts["held"] += 1
                    await self._passing.wait()
                if connection.silent or (to_client and connection.half_closed):
                    self.counts["dropped"] += 1
                    continue
                sink.write(piece)
                await sink.drain()
            await self._passing.wait()
            if not connection.silent and not (to_client and connection.half_closed):
                sink.write_eof()
                return
        except GONE:
            await self._passing.wait()
        if not (connection.silent and to_client):
            connection.abort()  # a client of a silent connection does not learn of its end


@contextlib.asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    """Yields a proxy that listens; all its connections end with the block."""
    between = Proxy()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(between.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    between.address = f"{host}:{port}"
    try:
        yield between
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
