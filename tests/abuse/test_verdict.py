"""The checks of `make abuse` find what they are there for."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil
import pytest
from aiohttp import web

from .honest import Answer, Clients, Job
from .hostile import Hostile
from .watch import Sample, Watch

JOB = Job("one", "/generate", {"text": "a"})
RIGHT = {
    "output_ids": [5, 6],
    "text": "b",
    "meta_info": {"finish_reason": {"type": "length"}, "completion_tokens": 2},
}
EXPECTED = {"one": Answer([[5, 6], "b", {"type": "length"}], 2)}


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """Serves an application; yields its URL."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def watched(readings: Callable[[int], tuple[float, int]]) -> Watch:
    watch = Watch(psutil.Process())
    for at in range(40):
        megabytes, descriptors = readings(at)
        watch.samples.append(Sample(megabytes, descriptors, 100.0, 50))
    return watch


def test_steady_readings_with_peaks_are_no_problem() -> None:
    assert watched(lambda at: (200.0 + 300.0 * (at % 5 == 0), 40 + at % 7)).problems() == []


def test_memory_and_descriptors_that_grow_are_problems() -> None:
    grown = watched(lambda at: (200.0 + 5.0 * at, 40 + 3 * at)).problems()
    assert grown == ["server_mb grows from 250 to 350", "server_fds grows from 70 to 130"]


@pytest.mark.process
def test_a_server_has_ended_once_its_process_has() -> None:
    with psutil.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as server:
        watch = Watch(server)
        assert watch.ended() == []
    assert watch.ended() == ["the server"]


@pytest.mark.parametrize(
    ("status", "reply", "answered", "tokens", "lost", "different"),
    [
        (200, RIGHT, 1, 2, 0, 0),
        (200, RIGHT | {"output_ids": [5, 7]}, 1, 0, 0, 1),
        (502, {"error": {"message": "no engine"}}, 0, 0, 1, 0),
    ],
)
async def test_an_answer_is_identical_different_or_lost(  # noqa: PLR0917
    status: int, reply: dict[str, Any], answered: int, tokens: int, lost: int, different: int
) -> None:
    async def generate(_: web.Request) -> web.Response:
        return web.json_response(reply, status=status)

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with listening(app) as url:
        clients = Clients(url, [JOB], EXPECTED)
        await clients.all_once()
    tally = clients.tally
    assert (tally.answered, tally.tokens) == (answered, tokens)
    assert (len(tally.lost), len(tally.different)) == (lost, different)


async def test_a_failure_and_a_wrong_token_that_opens_a_route_are_noticed() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0)
        return web.json_response({}, status=500 if request.path == "/generate" else 200)

    app = web.Application()
    app.router.add_post("/{any:.*}", answer)
    async with listening(app) as url:
        hostile = Hostile(url, [url], 1)
        async with hostile.session():
            await hostile.bomb()
            await hostile.wrong_token()
    assert len(hostile.seen.failed) == 3
    assert any("/pause_generation" in each for each in hostile.seen.let_in)
