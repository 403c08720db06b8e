"""The proxy disturbs connections as its methods say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from tests.chaos.proxy import Proxy, proxy
from tests.support.waiting import jump, until

SOON_S = 0.05


class Echo:
    """A server that returns what it receives. `ended`: clients that have closed their side."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                self.received += data
                writer.write(data)
        self.ended.set()
        writer.close()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, Proxy]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, proxy() as between:
        between.target = server.sockets[0].getsockname()
        yield echo, between


@contextlib.asynccontextmanager
async def connected(
    between: Proxy,
) -> AsyncIterator[tuple[asyncio.StreamReader, Callable[[bytes], None]]]:
    host, _, port = between.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        yield reader, writer.write
    finally:
        writer.close()


async def test_what_a_cut_holds_arrives_afterwards() -> None:
    async with echoing() as (echo, between), connected(between) as (reader, write):
        cutting = asyncio.create_task(between.cut(60.0))
        await asyncio.sleep(0)
        write(b"held")
        await until(lambda: between.counts["held"] == 1)
        assert echo.received == b"hello"
        jump(60.0)
        assert await cutting == 1
        assert await reader.readexactly(4) == b"held"
    assert between.counts["held"] == 1


async def test_what_is_slow_arrives_complete() -> None:
    async with echoing() as (echo, between), connected(between) as (reader, write):
        slowing = asyncio.create_task(between.slow(200.0, 60.0))
        await asyncio.sleep(0)
        write(b"slow")
        await until(lambda: between.counts["delayed"] == 1)
        assert echo.received == b"hello"
        jump(60.0)
        await until(lambda: between.counts["delayed"] == 2)
        reading = asyncio.create_task(reader.readexactly(4))
        await asyncio.sleep(0)
        assert not reading.done()
        jump(60.0)
        assert await reading == b"slow"
        jump(80.0)
        assert await slowing == 1
    assert between.counts["delayed"] == 2


async def test_a_dropped_connection_is_silent_for_good_and_a_new_one_works() -> None:
    async with echoing() as (echo, between), connected(between) as (reader, write):
        assert await between.drop(SOON_S) == 1
        reading = asyncio.create_task(reader.read(1))
        write(b"lost")
        await until(lambda: between.counts["dropped"] == 1)
        async with connected(between):
            assert not reading.done()
        reading.cancel()
    assert echo.received == b"hello" * 2
    assert between.counts["dropped"] == 1


async def test_a_reset_shows_at_both_ends() -> None:
    async with echoing() as (echo, between), connected(between) as (reader, _):
        assert between.reset() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await echo.ended.wait()


async def test_the_server_does_not_learn_of_a_half_closed_connection() -> None:
    async with echoing() as (echo, between), connected(between) as (reader, write):
        assert between.half_close() == 1
        assert await reader.read(1) == b""
        write(b"heard")
        await until(lambda: between.counts["dropped"])
        assert echo.received == b"hello" + b"heard"
        assert not echo.ended.is_set()


async def test_without_a_target_a_connection_is_closed() -> None:
    async with proxy() as between:
        between.target = "127.0.0.1", 1
        host, _, port = between.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read(1) == b""
        writer.close()
