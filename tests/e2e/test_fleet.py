"""A fleet of real SGLang servers that grows by one and shrinks again."""

from pathlib import Path

import aiohttp
import psutil
import pytest

from seer_sgl.config import parse
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import open_fleet
from tests.e2e.test_pool import local
from tests.listening import family
from tests.support.waiting import until

pytestmark = [pytest.mark.own_engines, pytest.mark.long]
TOKENS = 8


async def generate(engine: HttpEngine) -> list[int]:
    """Returns greedy tokens after a fixed prompt."""
    sampling = {"max_new_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    body = {"input_ids": [3, 4, 5], "sampling_params": sampling}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.info.url}/generate", json=body) as reply,
    ):
        ids: list[int] = (await reply.json())["output_ids"]
        return ids


def servers() -> list[psutil.Process]:
    """Returns all child processes of this process, including the servers' own children."""
    return [each for child in psutil.Process().children() for each in family(child)]


async def test_an_engine_joins_a_running_fleet_serves_and_leaves(tmp_path: Path) -> None:
    before = servers()
    async with open_fleet(parse(local(1, draft={"scope": "fleet"})).fleet, tmp_path) as fleet:
        (first,) = fleet.engines
        alone = servers()
        added = await fleet.start_engine()
        assert [engine.info.engine_id for engine in fleet.engines] == ["e0", "e1"]
        instances = [engine.info.instance or "" for engine in fleet.engines]
        await until(lambda: all(map(fleet.link.linked, instances)))
        tokens = await generate(added)
        assert len(tokens) == TOKENS
        assert tokens == await generate(first)
        await fleet.stop_engine("e1")
        assert fleet.engines == [first]
        assert set(servers()) == set(alone), "the draft hub and the first engine's"
        await until(lambda: not fleet.link.linked(added.info.instance or ""))
        assert await generate(first) == tokens
    assert set(servers()) == set(before)
