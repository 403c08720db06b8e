"""A client that writes bytes to a socket, also ones that no HTTP client would send."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

ENOUGH_S = 60.0


class Connection(NamedTuple):
    """One TCP connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Sends bytes; returns quietly if the server closes the connection meanwhile."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Returns status and headers of the next answer."""
        async with asyncio.timeout(ENOUGH_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): headers[name] for name in headers}

    async def answer(self) -> tuple[int, bytes]:
        """Returns status and body of the next answer."""
        status, headers = await self.head()
        async with asyncio.timeout(ENOUGH_S):
            if "content-length" in headers:
                return status, await self.reader.readexactly(int(headers["content-length"]))
            return status, b"".join([piece async for piece in self._pieces()])

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yields the pieces of a body in chunks."""
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def closed(self) -> bool:
        """Returns True once the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(ENOUGH_S):
                while await self.reader.read(1 << 16):
                    pass
        return True


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(body: bytes, path: str = "/generate", **headers: str) -> bytes:
    given = {"Host": "localhost", "Content-Type": "application/json", **headers}
    given.setdefault("Content-Length", str(len(body)))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape") + body
