"""Thousands of broken requests at once: none is answered with a 5xx, and nothing is left."""

import asyncio
import contextlib
import random

import psutil
import pytest

from tests.server.broken_requests import broken, send_badly
from tests.server.helpers import Served, served
from tests.server.hostile import CarefulFake, leaving_nothing, other_callers
from tests.server.raw import connected, post
from tests.support.waiting import until

pytestmark = pytest.mark.long
AT_ONCE = 40
CASES = 4000
BIG = 200_000_000  # bytes


async def attack(it: Served, seed: int, cases: int) -> None:
    """Sends broken requests, one connection each."""
    choices = random.Random(seed)
    for _ in range(cases):
        body = broken(choices)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            async with connected(it.url) as connection:
                status = await send_badly(connection, body, choices)
            assert status is None or status < 500, body


async def test_thousands_of_broken_requests_leave_nothing_behind() -> None:
    fakes = [CarefulFake(longest=50, delay_s=0.002), CarefulFake(longest=50, delay_s=0.002)]
    process, memory = psutil.Process(), []
    server = {"max_body": "4mb", "group_window_s": 0.5, "session_timeout_s": 0.5}
    async with served(*fakes, server=server) as it:
        async with leaving_nothing(it, *fakes), other_callers(it, fakes[0]):
            for part in range(4):
                seeds = range(part * AT_ONCE, (part + 1) * AT_ONCE)
                cases = CASES // 4 // AT_ONCE
                await asyncio.gather(*(attack(it, seed, cases) for seed in seeds))
                for fake in fakes:
                    fake.seen.clear()
                memory.append(process.memory_info().rss / 1e6)
        await until(lambda: it.service.generation.open_groups == 0)
        assert not it.service.driver._scheduler.check()
    assert memory[-1] < memory[1] + 50, memory


async def test_bodies_of_200_mb_cost_no_memory_and_hold_up_nobody() -> None:
    fake = CarefulFake(longest=50)
    process = psutil.Process()
    piece = b" " * (1 << 20)

    async def send(chunked: bool) -> int:
        headers = {"Content-Length": str(BIG)}
        async with connected(it.url) as connection:
            head = post(b"", **headers)
            if chunked:
                length = f"Content-Length: {BIG}".encode()
                head = head.replace(length, b"Transfer-Encoding: chunked")
            await connection.send(head)
            for _ in range(BIG // len(piece)):
                await connection.send(b"100000\r\n" + piece + b"\r\n" if chunked else piece)
                if connection.reader._buffer:  # type: ignore[attr-defined]  # it has answered
                    break
            return (await connection.answer())[0]

    async with (
        served(fake, server={"max_body": "4mb"}) as it,
        leaving_nothing(it, fake),
        other_callers(it, fake),
    ):
        before = process.memory_info().rss / 1e6
        statuses = await asyncio.gather(*(send(number % 2 == 0) for number in range(16)))
        after = process.memory_info().rss / 1e6
    assert set(statuses) == {413}
    assert after < before + 300
