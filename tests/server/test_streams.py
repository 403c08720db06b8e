"""Streams that end early."""

import asyncio
from typing import Any

import aiohttp
import pytest

from seer_sgl.server import rollout_routes
from seer_sgl.server.meta_info import Reply
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import served
from tests.server.rollout_client import prompts
from tests.support.bodies import body
from tests.support.waiting import until


async def test_a_stream_that_fails_half_way_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    event, made = Reply.event, 0

    def defective(reply: Reply) -> dict[str, Any]:
        nonlocal made
        made += 1
        if made == 2:
            raise KeyError("a defect")
        return event(reply)

    monkeypatch.setattr(Reply, "event", defective)
    async with served(FakeSGLang(longest=1000, delay_s=0.01)) as it:
        fields = body(300 << 7, stream=True)
        async with asyncio.timeout(60), it.session.post(f"{it.url}/generate", json=fields) as reply:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        await until(lambda: it.service.generation.in_progress == 0)
    assert "failed half-way" in caplog.text


async def test_a_rollout_that_fails_half_way_ends_its_connection_and_its_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defective(*_: Any) -> list[bytes]:
        raise KeyError("a defect")

    monkeypatch.setattr(rollout_routes, "_pieces", defective)
    async with served(FakeSGLang(longest=1000, delay_s=0.01)) as it:
        fields = {"groups": prompts(1, n=8), "seed": 1}
        async with asyncio.timeout(60), it.session.post(f"{it.url}/rollout", json=fields) as reply:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()
        await until(lambda: it.service.generation.in_progress == 0)
    assert "failed half-way" in caplog.text
