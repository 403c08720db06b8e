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
    assert "failed half-way" in caplog.text
