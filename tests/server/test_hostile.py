"""The server refuses hostile requests clearly, leaks nothing, and serves the others meanwhile."""

import asyncio
import contextlib
import itertools
import json
import threading
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from types import CoroutineType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from typing_extensions import override

from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine_types import ServerPhase, ServerState
from seer_sgl.server import bodies
from seer_sgl.timing import Timing
from seer_sgl.types import token_array
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import Served, served
from tests.server.hostile import (
    PROMPT,
    REFUSED,
    UNREADABLE,
    CarefulFake,
    leaving_nothing,
    other_callers,
)
from tests.server.raw import Connection, connected, post
from tests.support.waiting import until

SMALL = {"max_body": "8mb"}


def body(seed: int, length: int = 20, **fields: Any) -> bytes:
    params = {"max_new_tokens": length, "sampling_seed": seed}
    return json.dumps({"input_ids": PROMPT, "sampling_params": params, **fields}).encode()


@contextlib.asynccontextmanager
async def attacked(fake: CarefulFake, **options: Any) -> AsyncIterator[tuple[Served, Connection]]:
    """Serves a fake and connects to the server. Nothing is left of the block."""
    async with (
        served(fake, **options) as it,
        leaving_nothing(it, fake),
        connected(it.url) as connection,
    ):
        yield it, connection


@pytest.mark.process
async def test_a_hostile_body_is_refused_in_one_line_and_nobody_else_notices() -> None:
    fake = CarefulFake(longest=1000, delay_s=0.005)
    async with (
        served(fake, server=SMALL) as it,
        leaving_nothing(it, fake),
        other_callers(it, fake),
    ):
        for name, hostile in REFUSED.items():
            async with connected(it.url) as connection:
                await connection.send(post(hostile))
                status, answer = await connection.answer()
            assert 400 <= status < 500, (name, status, answer)
            message = json.loads(answer)["error"]["message"]
            assert message and "\n" not in message and len(message) < 500, name
            assert "Traceback" not in message and "/" not in message, name


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_request_is_refused_before_its_body_is_read(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers, hostile, wanted = UNREADABLE[name]
    fake = CarefulFake()
    async with attacked(fake, server=SMALL) as (_, connection):
        await connection.send(post(hostile, **headers))
        status, answer = await connection.answer()
        assert status == wanted
        assert json.loads(answer)["error"]["message"]
        assert not fake.seen
    assert not caplog.records, "or clients could fill the log"


async def test_a_body_in_chunks_is_limited_too() -> None:
    async with attacked(CarefulFake(), server={"max_body": "1mb"}) as (_, connection):
        headers = {"Transfer-Encoding": "chunked", "Content-Length": ""}
        await connection.send(post(b"", **headers).replace(b"Content-Length: \r\n", b""))
        for _ in range(20):
            await connection.send(b"20000\r\n" + b" " * 0x20000 + b"\r\n")
        status, answer = await connection.answer()
        assert status == 413
        assert b"server.max_body" in answer


async def test_clients_that_hold_back_large_bodies_keep_only_other_large_ones_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[web.Request] = []
    read = bodies._read

    async def noted(request: web.Request, most: int, timeout_s: float) -> None:
        begun.append(request)
        await read(request, most, timeout_s)

    monkeypatch.setattr(bodies, "_read", noted)
    fake = CarefulFake()
    large = {"Content-Length": str(2 << 20)}
    async with served(fake, server={"max_body": "2mb"}) as it, leaving_nothing(it, fake):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(bodies.MOST_AT_ONCE):
                slow = await stack.enter_async_context(connected(it.url))
                await slow.send(post(b"", **large))
            last = await stack.enter_async_context(connected(it.url))
            await until(lambda: len(begun) == bodies.MOST_AT_ONCE)
            await last.send(post(b"", **large))
            status, answer = await last.answer()
            assert (status, b"large bodies" in answer) == (429, True)
            assert (await it.post("/tokenize", prompt="a"))[0] != 429
        async with connected(it.url) as again:
            await again.send(post(b" " * (2 << 20)))
            assert (await again.answer())[0] == 400


async def test_a_client_that_sends_its_body_byte_by_byte_is_sent_away() -> None:
    async with attacked(CarefulFake(), timing=Timing(body_timeout_s=0.3)) as (_, connection):
        await connection.send(post(b"", **{"Content-Length": "1000"}))
        drip = asyncio.create_task(_drip(connection.send, itertools.repeat(b" ")))
        status, answer = await connection.answer()
        drip.cancel()
        assert (status, b"did not arrive" in answer) == (408, True)


@pytest.mark.parametrize("start", [b"", b"POST /gen", b"POST /generate HTTP/1.1\r\nHost: a\r\n"])
async def test_a_client_that_never_ends_its_header_is_disconnected(start: bytes) -> None:
    async with attacked(CarefulFake(), timing=Timing(idle_s=0.3)) as (_, connection):
        await connection.send(start)
        headers = (b"X%d: y\r\n" % number for number in itertools.count())
        drip = asyncio.create_task(_drip(connection.send, headers if start else ()))
        assert await connection.closed()
        drip.cancel()


async def _drip(send: Any, pieces: Any) -> None:
    for piece in pieces:
        await send(piece)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_its_half_of_the_socket_has_hung_up(stream: bool) -> None:
    fake = CarefulFake(longest=100_000, delay_s=0.02)
    async with attacked(fake, server={"group_window_s": 0.0}) as (_, connection):
        await connection.send(post(body(99_000 << 7, 10_000, stream=stream)))
        await until(lambda: fake.steps > 2)
        connection.writer.write_eof()
        assert await connection.closed()


async def test_a_client_that_never_reads_its_stream_costs_bounded_memory() -> None:
    fake = CarefulFake(longest=3001)
    async with (
        attacked(fake, scheduling={"chunk_tokens": 64}) as (it, connection),
        other_callers(it, fake),
    ):
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(post(body(3000 << 7, 3000, stream=True, return_logprob=True)))
        await until(
            lambda: any(each.call.stream for each in it.service.generation._answers.values())
        )
        mine = next(each for each in it.service.generation._answers.values() if each.call.stream)
        await until(lambda: mine.ended)  # decoding continues
        unsent = [transport.get_write_buffer_size() for transport in _server_transports()]
        # At most one event behind aiohttp's high-water mark of 64 KiB.
        assert 0 < sum(unsent) < 1 << 20


def _server_transports() -> Iterator[asyncio.Transport]:
    """Yields the transports of aiohttp's open server connections."""
    for task in asyncio.all_tasks():
        coroutine = task.get_coro()
        frame = coroutine.cr_frame if isinstance(coroutine, CoroutineType) else None
        own = None if frame is None else frame.f_locals.get("self")
        if isinstance(own, RequestHandler) and own.transport is not None:
            yield own.transport


class HeldTokenizer(Tokenizer):
    """Takes as long as the test wants for a long text."""

    def __init__(self) -> None:
        super().__init__(None)
        self.released = threading.Event()
        self.encoding = 0

    @override
    def encode(self, text: str) -> "array[int]":
        if len(text) > 1000:
            self.encoding += 1
            self.released.wait(60)
        return token_array(PROMPT)

    @override
    def decode(self, ids: Sequence[int]) -> str:
        return ""

    @override
    def response_text(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return ""


async def test_a_long_text_is_tokenised_without_holding_up_the_others() -> None:
    fake = CarefulFake(longest=1000)
    async with served(fake) as it, leaving_nothing(it, fake):
        tokenizer = it.service.rollout.tokenizer = HeldTokenizer()
        params = {"max_new_tokens": 4}
        for more in ({}, {"logprob_start_len": 0}):  # divided, and passed through
            text = "x" * 100_000
            long = asyncio.create_task(it.generate(text=text, sampling_params=params, **more))
            await until(lambda: tokenizer.encoding)
            assert await it.generate(text="short", sampling_params=params)
            assert not long.done()
            tokenizer.released.set()
            with contextlib.suppress(AssertionError):  # the fake cannot tokenise
                await long
            tokenizer.encoding = 0
            tokenizer.released.clear()


async def test_a_text_that_no_engine_can_take_is_refused_before_it_is_tokenised() -> None:
    fake = CarefulFake(max_total_num_tokens=1000)
    async with served(fake) as it:
        tokenizer = it.service.rollout.tokenizer = HeldTokenizer()
        for more in ({}, {"logprob_start_len": 0}):
            status, reply = await it.post("/generate", text="x" * 300_000, **more)
            assert (status, "characters" in reply["error"]["message"]) == (400, True)
        assert not tokenizer.encoding and not fake.seen


async def test_an_engines_failure_names_no_file_of_the_server() -> None:
    fake = FakeSGLang()
    async with served(fake, timing=Timing(poll_s=60.0)) as it:
        engine = it.service.fleet.engines[0]
        why = "its process ended with status 9; its log: /srv/logs/e0.log"
        engine._server = lambda: ServerState(phase=ServerPhase.ENDED, why=why)
        fake.die()
        for method, path in (("GET", "/server_info"), ("POST", "/v1/completions")):
            async with it.session.request(method, it.url + path, json={"prompt": "a"}) as refused:
                text = await refused.text()
            assert (refused.status, "ended with status 9" in text) == (503, True), text
            assert "/srv" not in text
