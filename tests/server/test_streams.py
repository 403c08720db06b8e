"""Streams that end early."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.server import rollout_routes
from seer_sgl.server.meta_info import Reply
from seer_sgl.server.rollout_progress import summary
from tests.fake_sglang import FakeSGLang
from tests.server.chat_fake import ChatFake, model_folder
from tests.server.helpers import CHUNK, BreakingOff, served
from tests.server.rollout_client import prompts
from tests.server.scrape import scraped
from tests.support.bodies import body, events
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("failing", "path", "fields"),
    [
        ((Reply, "event"), "/generate", body(300 << 7, stream=True)),
        ((rollout_routes, "_pieces"), "/rollout", {"groups": prompts(4), "seed": 1}),
    ],
)
async def test_a_stream_that_fails_half_way_ends_its_connection_and_its_requests(
    failing: tuple[Any, str],
    path: str,
    fields: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part, made = getattr(*failing), 0

    def defective(*given: Any) -> Any:
        nonlocal made
        made += 1
        if made == 2:
            raise KeyError("a defect")
        return part(*given)

    monkeypatch.setattr(*failing, defective)
    async with served(FakeSGLang(longest=1000, delay_s=0.01)) as it:
        async with asyncio.timeout(60), it.session.post(f"{it.url}{path}", json=fields) as reply:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        await until(lambda: it.service.generation.in_progress == 0)
        assert (await scraped(it))("seer_http_requests_total", **counted(path, 500)) == 1
        assert all(end["state"] == "failed" for end in map(summary, it.service.rollouts))
    assert "failed half-way" in caplog.text


def counted(route: str, status: int) -> dict[str, str]:
    return {"route": route, "method": "POST", "status": str(status)}


async def test_an_answer_whose_engine_fails_half_way_is_counted_as_failed() -> None:
    class BreakingOffLater(BreakingOff):
        @override
        async def half(self, response: web.StreamResponse) -> None:
            await response.write(b"data: {}\n\n")
            await received.wait()

    received = asyncio.Event()
    async with served(BreakingOffLater(longest=1000)) as it:
        fields = body(1, top_logprobs_num=1, stream=True)
        async with asyncio.timeout(60), it.session.post(f"{it.url}/generate", json=fields) as reply:
            assert await reply.content.readany()
            received.set()
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        now = await scraped(it)
        assert now("seer_http_requests_total", **counted("/generate", 502)) == 1
        assert now("seer_request_seconds_count", kind="single") == 0


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
async def test_a_stream_that_ends_with_an_error_is_counted_with_its_status(
    path: str, tmp_path: Path
) -> None:
    fake = ChatFake(rejects=lambda call: len(call["input_ids"]) > CHUNK)  # continuations
    fields = body(300 << 7) if path == "/generate" else {"prompt": " w100", "seed": 300 << 7}
    async with served(fake, model={"path": model_folder(tmp_path)}) as it:
        *_, last = await events(it, path, **fields)
        now = await scraped(it)
    assert "fault 400" in last["error"]["message"]
    assert now("seer_http_requests_total", **counted(path, 400)) == 1
    assert now("seer_request_seconds_count", kind="single") == 0
