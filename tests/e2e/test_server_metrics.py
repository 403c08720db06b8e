"""`/metrics` and `/live` of a server on two real engines, beside what its clients received."""

import asyncio
from typing import Any

import pytest

from seer_sgl.config import parse
from seer_sgl.rollout.rollout import Rollout
from tests.server.helpers import Served, served_config
from tests.server.scrape import scraped

pytestmark = pytest.mark.shared_engines
LIMIT, CHUNK, CALLS = 96, 32, 8


async def live(it: Served) -> dict[str, Any]:
    async with it.session.get(f"{it.url}/live") as reply:
        data: dict[str, Any] = await reply.json()
        return data


async def test_the_figures_are_what_clients_received(engine_urls: list[str]) -> None:
    config = parse(
        {
            "engines": {"launch": "external", "urls": engine_urls},
            "scheduling": {"chunk_tokens": CHUNK},
            "server": {"port": 0},
        }
    )
    params = {"max_new_tokens": LIMIT, "ignore_eos": True, "temperature": 1.0}
    async with served_config(Rollout(config, gives_up=False)) as it:
        calls = [
            asyncio.create_task(it.generate(input_ids=[5 + number, 7], sampling_params=params))
            for number in range(CALLS)
        ]
        while True:
            busy = await live(it)
            if busy["requests"]["running"]:
                break
            await asyncio.sleep(0.01)
        replies = await asyncio.gather(*calls)
        now = await scraped(it)
        idle = await live(it)
    assert 0 < len(busy["tail"]) <= CALLS
    assert idle["tail"] == idle["groups"] == []
    metas = [reply["meta_info"] for reply in replies]
    assert now("seer_generated_tokens_total") == sum(meta["completion_tokens"] for meta in metas)
    assert now("seer_chunks_total") == sum(meta["seer"]["chunks"] for meta in metas)
    recomputed = sum(meta["seer"]["recomputed_tokens"] for meta in metas)
    assert now("seer_recomputed_tokens_total") == recomputed
    engines = {engine for meta in metas for engine in meta["seer"]["engines"]}
    assert engines == {"e0", "e1"}
    for engine in engines:
        assert now("seer_engine_kv_capacity_tokens", engine=engine) > 0
        assert now("seer_engine_available", engine=engine) == 1
    assert now.sum("seer_chunk_errors_total") == 0
