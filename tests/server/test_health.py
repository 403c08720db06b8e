"""`/health_generate` and `/v1/loads`: a busy fleet is healthy, and one that does nothing is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.timing import DEFAULT, Timing
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import Served, served
from tests.support.bodies import body
from tests.support.waiting import polled, until


async def health(it: Served) -> int:
    return (await it.ask("GET", "/health_generate"))[0]


@contextlib.asynccontextmanager
async def busy(fake: FakeSGLang, timing: Timing = DEFAULT, **server: Any) -> AsyncIterator[Served]:
    """Serves a fake for one request at once, while it has one."""
    fake.faults.append("stall")
    async with served(fake, server=server, timing=timing) as it:
        call = asyncio.create_task(
            it.generate(**body(1, top_logprobs_num=1, params={"max_new_tokens": 9}))
        )
        await until(lambda: len(fake.seen) == 1)
        yield it
        fake.wake_stalled()
        await call


async def test_an_engine_that_works_is_healthy_although_no_more_fits_on_it() -> None:
    fake = FakeSGLang(max_running_requests=1, decodes_on=True)
    async with busy(fake, max_requests=1) as it:
        assert await health(it) == 200
        assert len(fake.seen) == 1


async def test_an_engine_without_progress_is_unhealthy() -> None:
    fake = FakeSGLang(max_running_requests=1)
    async with busy(fake, Timing(poll_s=0.02, health_timeout_s=0.05)) as it:
        await polled(fake)  # a poll has shown the request
        assert await health(it) == 503
        await until(lambda: it.service.generation.in_progress == 1)


async def test_an_idle_engine_is_healthy_after_one_token() -> None:
    fake = FakeSGLang()
    async with served(fake) as it:
        assert await health(it) == 200
        assert (await it.ask("GET", "/ready"))[0] == 200
    assert [call["sampling_params"]["max_new_tokens"] for call in fake.seen] == [1]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("loads", [[1], {"a": 1}, "x"])
async def test_a_load_that_is_none_hides_no_other(ranks: int, loads: Any) -> None:
    class Strange(FakeSGLang):
        @override
        async def loads(self, http: web.Request) -> web.Response:
            if "strange" in http.query:
                return web.json_response({"loads": loads})
            return await super().loads(http)

    plugin = {"version": "1", "missing": [], "instance": "i", "weights": "w"}
    strange = Strange(dp_size=ranks, plugin=plugin)
    async with served(strange, FakeSGLang()) as it:
        status, answer = await it.ask("GET", "/v1/loads?strange=1")
    assert status == 200
    assert [each["dp_rank"] for each in answer["loads"]] == [0]
