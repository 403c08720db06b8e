"""The server's client, with servers that fail: each failure is one line that names the URL."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from seer_openrlhf import client
from seer_openrlhf.batch import SampleLost
from seer_openrlhf.client import LOOKS, Server, ServerError, ServerLost
from seer_openrlhf.front import Front
from seer_openrlhf.ports import free_port

Json = dict[str, Any]
SHORT_S = 0.2
BODY = {"rollout_id": "a/b", "groups": []}


class Stream:
    """A server whose rollouts send `lines`, and then do `after`. `progress`: of its rollouts."""

    def __init__(self, lines: list[Json], after: Callable[[Any], Awaitable[None]]) -> None:
        self.lines = lines
        self.after = after
        self.progress: list[Json] = [{"generated_tokens": 0}]
        self.looks = 0
        self.looked_at = asyncio.Event()  # several times
        self.tokens: list[str | None] = []

    async def rollout(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in self.lines:
            await response.write(json.dumps(line).encode() + b"\n")
        await self.after(request)
        return response

    async def look(self, request: web.Request) -> web.Response:
        assert request.match_info["id"] == BODY["rollout_id"]
        found = self.progress[min(self.looks, len(self.progress) - 1)]
        self.looks += 1
        if self.looks == 2 * LOOKS:
            self.looked_at.set()
        return web.json_response(found)

    async def control(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization"))
        return web.json_response({"error": {"message": "no\nengine"}}, status=503)


async def nothing(_: web.Request) -> None:
    """Ends the answer."""


async def silence(_: web.Request) -> None:
    await asyncio.Event().wait()


async def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


@asynccontextmanager
async def client_of(stream: Stream, timeout_s: float = 30.0) -> AsyncIterator[tuple[Server, str]]:
    app = web.Application()
    app.router.add_post("/rollout", stream.rollout)
    app.router.add_get("/rollout/{id}", stream.look)
    app.router.add_post("/{path}", stream.control)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    await web.TCPSite(runner, "127.0.0.1", int(url.rpartition(":")[2])).start()
    server = Server(url, token="t", admin_token="a", timeout_s=timeout_s)
    try:
        yield server, url
    finally:
        await server.close()
        await runner.cleanup()


async def events_of(server: Server) -> list[Json]:
    return [event async for event in server.rollout(BODY)]


async def test_a_rollout_ends_with_its_last_line() -> None:
    lines = [{"event": "start"}, {"event": "sample", "text": "ü" * 100_000}, {"event": "end"}]
    async with client_of(Stream(lines, silence)) as (server, _):
        assert await events_of(server) == lines


async def test_an_answer_that_ends_early_is_an_error() -> None:
    async with client_of(Stream([{"event": "start"}], nothing)) as (server, url):
        with pytest.raises(ServerError) as caught:
            await events_of(server)
    assert str(caught.value) == f"/rollout: {url} has ended its answer before the last line"


async def test_a_connection_that_ends_is_an_error() -> None:
    async with client_of(Stream([{"event": "start"}], cut)) as (server, url):
        with pytest.raises(ServerError) as caught:
            await events_of(server)
    line = str(caught.value)
    assert line.startswith(f"/rollout: the connection to {url} has ended: ") and "\n" not in line


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with client_of(Stream([], nothing)) as (_, url):
        pass
    gone = Server(url, token=None, admin_token=None, timeout_s=1)
    with pytest.raises(ServerError, match=f"^/rollout: {url} does not answer: "):
        await events_of(gone)
    with pytest.raises(ServerError, match=f"^/generate: {url} does not answer: "):
        await gone.generate({})
    await gone.close()


async def test_a_machine_that_does_not_answer_is_a_server_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(*_: Any, **__: Any) -> Any:
        raise TimeoutError  # of `sock_connect`

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    server = Server("http://a", token=None, admin_token=None, timeout_s=1)
    with pytest.raises(ServerLost, match=r"^/rollouts: http://a does not answer: "):
        await server.get("/rollouts")
    await server.close()


async def test_a_silent_rollout_without_progress_is_an_error() -> None:
    stream = Stream([{"event": "start"}], silence)
    async with client_of(stream, SHORT_S) as (server, url):
        with pytest.raises(ServerError) as caught:
            await events_of(server)
    assert str(caught.value) == f"/rollout: no progress at {url} for {SHORT_S} s"
    assert stream.looks == LOOKS + 1, "the first one has nothing to be compared with"


async def test_a_silent_rollout_with_progress_continues() -> None:
    async def until_looked_at(_: web.Request) -> None:
        await stream.looked_at.wait()

    stream = Stream([{"event": "start"}], until_looked_at)
    stream.progress = [{"generated_tokens": looks // LOOKS} for looks in range(3 * LOOKS)]
    async with client_of(stream, SHORT_S) as (server, _):
        with pytest.raises(ServerError, match="before the last line"):
            await events_of(server)


async def test_a_server_that_hangs_is_an_error() -> None:
    async def hang(_: web.Request) -> web.Response:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    stream = Stream([{"event": "start"}], silence)
    vars(stream).update(look=hang, control=hang)
    async with client_of(stream, SHORT_S) as (server, url):
        with pytest.raises(ServerError) as caught:
            await events_of(server)
        assert str(caught.value) == f"/rollout: no word from {url} for {SHORT_S} s"
        with pytest.raises(ServerError, match=f"^/flush_cache: no word from {url} for 0.2 s$"):
            await server.control("/flush_cache", {})


async def test_a_refusal_has_the_servers_reason() -> None:
    stream = Stream([], nothing)
    async with client_of(stream) as (server, url):
        with pytest.raises(ServerError, match=f"^/pause_generation: {url} answers 503: no engine$"):
            await server.control("/pause_generation", {})
        with pytest.raises(ServerError, match="503"):
            await server.generate({})
    assert stream.tokens == ["Bearer a", "Bearer t"]


async def test_a_response_that_the_engines_could_not_produce_is_lost_alone() -> None:
    async def control(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "2 engines died"}}, status=502)

    stream = Stream([], nothing)
    vars(stream).update(control=control)
    async with client_of(stream) as (server, url):
        ask: Any = Front(server, None)._lasting.generate
        with pytest.raises(SampleLost, match=f"^/generate: {url} answers 502: 2 engines died$"):
            await ask({})


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_takes_no_requests_now_is_asked_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(Stream):
        """Takes a request at the third try."""

        def refusal(self, request: web.Request) -> web.Response | None:
            tries.append(request.path)
            if tries.count(request.path) == 3:
                return None
            error = {"error": {"message": "not now"}}
            return web.json_response(error, status=status, headers={"Retry-After": "1"})

        async def rollout(self, request: web.Request) -> web.StreamResponse:
            refusal = self.refusal(request)
            return await super().rollout(request) if refusal is None else refusal

        async def control(self, request: web.Request) -> web.Response:
            refusal = self.refusal(request)
            return web.json_response({"text": "x"}) if refusal is None else refusal

    monkeypatch.setattr(client, "RETRY_S", 0.0)
    tries: list[str] = []
    async with client_of(Busy([{"event": "end"}], nothing)) as (server, _):
        assert await events_of(server) == [{"event": "end"}]
        assert await server.generate({}) == {"text": "x"}
    assert tries == ["/rollout"] * 3 + ["/generate"] * 3
