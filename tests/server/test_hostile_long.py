"""Thousands of broken requests at once: none is answered with a 5xx, and nothing is left."""

import asyncio
import contextlib
import json
import random
from typing import Any

import psutil
import pytest

from tests.server.helpers import Served, served
from tests.server.hostile import REFUSED, CarefulFake, leaving_nothing, other_callers
from tests.server.raw import Connection, connected, post
from tests.support.waiting import until

pytestmark = pytest.mark.long
AT_ONCE = 40
CASES = 4000
BIG = 200_000_000  # bytes

TEMPLATES: list[dict[str, Any]] = [
    {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 8}},
    {"input_ids": [[5], [6, 7]], "sampling_params": {"n": 2, "stop_token_ids": [3]}},
    {"input_ids": [5], "stream": True, "return_logprob": True, "rid": "r"},
    {"input_ids": [5], "group_id": "g", "group_size": 3, "session_id": "s"},
    {"input_ids": [5], "top_logprobs_num": 2, "logprob_start_len": 0},
    {"input_ids": [5], "sampling_params": {"logit_bias": {"5": 1.0}, "min_p": 0.5, "top_k": 3}},
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 1e308, 1 << 31, 1 << 63, 1 << 64, "", "x", "\0", "\ud7ff", [], {}),
    *([[]], [None], [1, "a"], {"a": {}}, {"": 0}, "x" * 10_000, [1] * 10_000, ["x"] * 1000),
]


def broken(choices: random.Random) -> bytes:
    """Returns a body: one of the templates with changed values, or with changed bytes."""
    if choices.random() < 0.1:
        return choices.choice(list(REFUSED.values()))
    fields = json.loads(json.dumps(choices.choice(TEMPLATES)))
    for _ in range(choices.randint(0, 3)):
        place = fields
        if isinstance(fields.get("sampling_params"), dict) and choices.random() < 0.5:
            place = fields["sampling_params"]
        place[choices.choice([*place, "stop", "max_new_tokens", "n"])] = choices.choice(VALUES)
    body = bytearray(json.dumps(fields).encode())
    for _ in range(choices.choice([0, 0, 1, 5])):
        at = choices.randrange(len(body))
        body[at : at + choices.randint(0, 3)] = choices.randbytes(choices.randint(0, 3))
    return bytes(body)


async def send_badly(connection: Connection, body: bytes, choices: random.Random) -> None:
    """Sends a request as a bad client might, and leaves at some moment."""
    sent = post(body)
    manner = choices.random()
    if manner < 0.1:  # cut short
        await connection.send(sent[: choices.randrange(len(sent))])
        return
    if manner < 0.2:  # of another length than it says
        length = str(max(0, len(body) + choices.randint(-5, 5)))
        sent = post(body, **{"Content-Length": length})
    if manner < 0.3:  # in small pieces
        for at in range(0, min(len(sent), 2000), 50):
            await connection.send(sent[at : at + 50])
            await asyncio.sleep(0)
        sent = sent[2000:]
    await connection.send(sent)
    if manner < 0.4:
        await asyncio.sleep(choices.random() * 0.01)
        return
    if manner < 0.5:
        connection.writer.write_eof()
        return
    async with asyncio.timeout(5.0):
        status, _ = await connection.head()
    assert status < 500, body
    if manner < 0.9:
        with contextlib.suppress(TimeoutError):  # a stream
            async with asyncio.timeout(1.0):
                await connection.reader.read(1 << 20)


async def attack(it: Served, seed: int, cases: int) -> None:
    """Sends broken requests, one connection each."""
    choices = random.Random(seed)
    for _ in range(cases):
        body = broken(choices)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            async with connected(it.url) as connection:
                await send_badly(connection, body, choices)


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
