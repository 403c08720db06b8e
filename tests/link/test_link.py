"""The link between engines and their driver, both ends on real sockets."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from seer_sgl.link import client as engine_side
from seer_sgl.link import messages
from seer_sgl.link import server as driver_side
from seer_sgl.link.client import Link
from seer_sgl.link.drafthub import FACTS
from seer_sgl.link.hub import FACTS_BYTES
from seer_sgl.link.messages import Forget, Hello, KvStored, Rates
from seer_sgl.link.server import LinkServer, open_link
from seer_sgl.processes.child import free_port
from tests.support.hubs import hub_client
from tests.support.links import closed, engine, raw_socket
from tests.support.waiting import DEADLINE_S, until

RATES = Rates(1000, 0.5, 2000, 0.25)


class Received:
    """Records the frames that a server passes on.

    Frames of one engine arrive in order, so its rates show that all earlier frames were processed.
    """

    def __init__(self, server: LinkServer) -> None:
        self.stored: list[tuple[str, bool]] = []
        self.rates: list[Rates] = []
        server.on_stored = lambda rid, complete: self.stored.append((rid, complete))
        server.on_rates = self.rates.append

    async def all_of(self, sender: Link) -> list[tuple[str, bool]]:
        """Returns the passed-on frames after all frames of `sender` were processed."""
        count = len(self.rates)
        sender.send(RATES)
        await self.rates_of(count + 1)
        return self.stored

    async def rates_of(self, count: int) -> None:
        await until(lambda: len(self.rates) == count)


@pytest.fixture
async def server() -> AsyncIterator[LinkServer]:
    async with open_link() as opened:
        yield opened


@pytest.fixture
def received(server: LinkServer) -> Received:
    return Received(server)


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], object], port: int, path: str = "/link"
) -> AsyncIterator[str]:
    """Serves the handler on a loopback port; the end cuts open connections."""
    app = web.Application()
    app.router.add_get(path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}/link"
    finally:
        await runner.cleanup()


@pytest.fixture
def absent() -> tuple[LinkServer, int]:
    """A driver that is not up yet, and its future port."""
    driver, port = LinkServer(), free_port()
    driver.url = f"http://127.0.0.1:{port}/link"
    return driver, port


async def test_an_engine_is_linked_while_all_its_ranks_are(server: LinkServer) -> None:
    assert not server.linked("one")
    async with engine(server, "one", 0, 2), engine(server, "two"):
        await server.until_linked("two")
        assert not server.linked("one")
        async with engine(server, "one", 1, 2):
            await server.until_linked("one")
        await until(lambda: not server.linked("one"))
        assert server.linked("two")
    await until(lambda: not server.linked("two"))


async def test_an_engine_that_has_left_is_forgotten(server: LinkServer) -> None:
    async with engine(server, ranks=2), engine(server, rank=1, ranks=2):
        await server.until_linked("one")
    await until(lambda: not server._sockets and not server._ranks)
    async with engine(server):  # the same name with another number of ranks
        await server.until_linked("one")


@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True)])
async def test_a_call_is_stored_once_every_rank_has_stored_its_part(
    server: LinkServer, received: Received, parts: tuple[bool, bool]
) -> None:
    async with engine(server, rank=0, ranks=2) as first, engine(server, rank=1, ranks=2) as second:
        first.send(KvStored("g.0.c1/", parts[0]))
        first.send(KvStored("g.0.c1/", parts[0]))
        assert await received.all_of(first) == [], "one rank twice does not count as two ranks"
        second.send(KvStored("g.1.c1/", True))
        assert await received.all_of(second) == [], "reports of different calls do not add up"
        second.send(KvStored("g.0.c1/", parts[1]))
        assert await received.all_of(second) == [("g.0.c1/", all(parts))]


async def test_calls_that_some_ranks_never_report_do_not_pile_up(
    server: LinkServer, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_side, "MAX_PARTIAL", 2)
    async with engine(server, rank=0, ranks=2) as first, engine(server, rank=1, ranks=2) as second:
        for rid in ("oldest", "older", "newest"):
            first.send(KvStored(rid, True))
        await received.all_of(first)
        for rid in ("newest", "older", "oldest"):
            second.send(KvStored(rid, True))
        assert await received.all_of(second) == [("newest", True), ("older", True)]
        first.send(KvStored("x" * (driver_side.MAX_RID + 1), True))
        assert len(await received.all_of(first)) == 2
        second.send(KvStored("x" * (driver_side.MAX_RID + 1), True))
        assert len(await received.all_of(second)) == 2, "the first rank's part was not kept"
        first.send(KvStored("oldest", True))
        assert (await received.all_of(first))[2:] == [("oldest", True)]


@pytest.mark.parametrize("scheme", ["", "Bearer ", "Bearer {}x", "{}", "Basic {}"])
async def test_without_the_token_nobody_gets_in(server: LinkServer, scheme: str) -> None:
    headers = {"Authorization": scheme.format(server.token)} if scheme else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(server.url)
    assert refused.value.status == 401


async def test_who_has_not_said_hello_is_not_believed(
    server: LinkServer, received: Received
) -> None:
    before = (KvStored("before", True), Rates(7, 1.0, 0, 0.0))
    after = (KvStored("after", True), RATES)
    async with raw_socket(server, *before, Hello(messages.PROTOCOL, "one", 0, 1), *after):
        await received.rates_of(1)
    assert received.stored == [("after", True)]
    assert received.rates == [RATES]


@pytest.mark.parametrize(
    "rates",
    [
        Rates(10, 0.0, 0, 0.0),
        Rates(10, -1.0, 0, 0.0),
        Rates(-10, 1.0, 0, 0.0),
        Rates(-10, -1.0, 0, 0.0),
        Rates(10, 1.0, 10, math.nan),
        Rates(0, 0.0, 10, math.inf),
        Rates(1 << 63, 1e-300, 0, 0.0),
        Rates(10, 5e-324, 0, 0.0),
    ],
)
async def test_rates_that_nothing_can_have_are_ignored(
    server: LinkServer, received: Received, rates: Rates
) -> None:
    async with engine(server) as one:
        one.send(rates)
        one.send(KvStored("g.0.c1/", True))
        assert await received.all_of(one) == [("g.0.c1/", True)], "the link stays up"
    assert received.rates == [RATES]


async def test_a_second_hello_ends_its_connection_and_names_no_other_engine(
    server: LinkServer,
) -> None:
    frames = (Hello(messages.PROTOCOL, instance, 0, 1) for instance in ("first", "second"))
    async with raw_socket(server, *frames) as socket:
        assert await closed(socket)
    await until(lambda: not server.linked("first"))
    assert not server.linked("second")


@pytest.mark.parametrize(
    ("newer", "rank", "ranks"),
    [(1, 1, 2), (0, 2, 2), (0, -1, 1), (0, 0, 0), (0, 0, -1), (0, 1, 3)],
)
async def test_another_protocol_or_a_rank_that_cannot_be_is_refused(
    server: LinkServer, received: Received, newer: int, rank: int, ranks: int
) -> None:
    odd_hello = Hello(messages.PROTOCOL + newer, "one", rank, ranks)
    async with engine(server, rank=0, ranks=2) as first:
        first.send(KvStored("g.0.c1/", True))
        await received.all_of(first)
        async with raw_socket(server, odd_hello, KvStored("g.0.c1/", True)) as odd:
            assert await closed(odd)
        assert not server.linked("one")
        assert received.stored == []
        async with engine(server, rank=1, ranks=2):
            await server.until_linked("one")


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x81\xa4type\xa4what"])
async def test_an_unreadable_frame_costs_its_socket_only(
    server: LinkServer, received: Received, garbage: bytes
) -> None:
    hello = Hello(messages.PROTOCOL, "odd", 0, 1)
    async with engine(server) as one, raw_socket(server, hello) as socket:
        await server.until_linked("odd")
        await socket.send_bytes(garbage)
        assert await closed(socket)
        await until(lambda: not server.linked("odd"))
        one.send(KvStored("g.0.c1/", True))
        assert await received.all_of(one) == [("g.0.c1/", True)]


async def test_forget_reaches_every_rank_of_its_engine_and_no_other(server: LinkServer) -> None:
    async with (
        engine(server, "one", 0, 2) as first,
        engine(server, "one", 1, 2) as second,
        engine(server, "two") as other,
    ):
        await server.until_linked("one")
        await server.until_linked("two")
        server.forget("gone", "g.0", 1)
        server.forget("one", "g.0", 64)
        server.forget("two", "g.1", 0)
        await until(lambda: first.received and second.received and other.received)
    assert first.received == second.received == [Forget("g.0", 64)]
    assert other.received == [Forget("g.1", 0)]


async def test_an_engine_that_restarts_takes_over_from_its_dead_socket(
    server: LinkServer, received: Received
) -> None:
    hello = Hello(messages.PROTOCOL, "one", 0, 1)
    async with raw_socket(server) as dead, raw_socket(server) as alive:
        for count, socket in enumerate((dead, alive), 1):
            for frame in (hello, RATES):
                await socket.send_bytes(messages.encode(frame))
            await received.rates_of(count)
        await dead.close()
        await alive.send_bytes(messages.encode(RATES))
        await received.rates_of(3)
        assert server.linked("one")
        server.forget("one", "g.0", 0)
        message = await alive.receive(DEADLINE_S)
        assert messages.decode(message.data, messages.to_engine) == Forget("g.0", 0)


NESTED = b"\x82\xa4type\xa4done\xa6groups" + b"\x91" * 100_000 + b"\xc0"
NO_TEXT = messages.encode(Forget("g.0", 0)).replace(b"g.0", b"\xff" * 3)


@pytest.mark.parametrize("unknown", [b"\x81\xa4type\xa4what", NESTED, NO_TEXT])
async def test_an_engine_ignores_what_a_newer_driver_says(
    server: LinkServer, unknown: bytes
) -> None:
    async def newer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(unknown)
        await socket.send_bytes(messages.encode(Forget("g.0", 0)))
        async for _ in socket:
            pass
        return socket

    async with serving(newer, free_port()) as server.url, engine(server) as one:
        await until(lambda: one.received)
        assert one.received == [Forget("g.0", 0)]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a":' + b"[" * 100_000, b'{"a": "%s"}' % (b"a" * FACTS_BYTES)]
)
async def test_counters_of_a_hub_that_are_none_are_no_answer(body: bytes) -> None:
    async def lying(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with serving(lying, free_port(), FACTS) as url, hub_client(url, "token") as client:
        assert await client.facts() is None


async def test_a_link_outlives_an_error_of_a_handler(server: LinkServer) -> None:
    calls = 0

    def fails_once(_: Forget) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("a defect")

    async with engine(server) as one:
        one.on(Forget, fails_once)
        while calls < 2:  # the first one closes the connection, with those behind it
            server.forget("one", "g.0", 0)
            await asyncio.sleep(0.01)
        assert one.thread.is_alive()


async def test_what_is_said_while_the_driver_is_away_arrives_when_it_is_there(
    absent: tuple[LinkServer, int],
) -> None:
    driver, port = absent
    received = Received(driver)
    async with engine(driver) as one:
        one.send(KvStored("early", True))
        async with serving(driver.serve, port):
            assert await received.all_of(one) == [("early", True)]
        await until(lambda: not one.talks)
        one.send(KvStored("between", True))
        one.send(KvStored("the two", True))
        async with serving(driver.serve, port):
            assert (await received.all_of(one))[1:] == [("between", True), ("the two", True)]
            assert driver.linked("one")


async def test_only_the_newest_frames_wait_for_the_driver(
    absent: tuple[LinkServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_side, "MAX_WAITING", 3)
    driver, port = absent
    received = Received(driver)
    async with engine(driver) as one:
        for i in range(6):
            one.send(KvStored(f"g.{i}.c1/", True))
        async with serving(driver.serve, port):
            await until(lambda: len(received.stored) == 3)
    assert [rid for rid, _ in received.stored] == ["g.3.c1/", "g.4.c1/", "g.5.c1/"]


async def test_what_could_not_be_sent_arrives_after_the_reconnect(
    absent: tuple[LinkServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, port = absent
    received = Received(driver)
    stock, breaks = aiohttp.ClientWebSocketResponse.send_bytes, 0

    async def breaks_once(
        self: aiohttp.ClientWebSocketResponse, data: bytes, compress: int | None = None
    ) -> None:
        nonlocal breaks
        if not breaks and isinstance(messages.decode(data, messages.to_driver), KvStored):
            breaks += 1
            await self.close()
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        await stock(self, data, compress)

    monkeypatch.setattr(aiohttp.ClientWebSocketResponse, "send_bytes", breaks_once)
    async with engine(driver) as one:
        one.send(KvStored("g.0.c1/", True))
        async with serving(driver.serve, port):
            await until(lambda: breaks and driver.linked("one"))
            await until(lambda: received.stored)
