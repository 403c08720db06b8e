"""A client of the rollout API, for tests."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from seer_sgl.driver.groups import derived_seed
from tests.fake_sglang import FakeSGLang, response_of

from .helpers import Served

SEED = 7


class Stream:
    """The stream of one rollout."""

    def __init__(self, served: Served, reply: aiohttp.ClientResponse) -> None:
        self._served = served
        self._reply = reply
        self.rollout_id = reply.headers["X-Seer-Rollout-Id"]

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        buffer = b""
        async for piece in self._reply.content.iter_any():
            *whole, buffer = (buffer + piece).split(b"\n")
            for line in whole:
                yield msgspec.json.decode(line)
        assert not buffer

    async def rest(self) -> list[dict[str, Any]]:
        return [line async for line in self.lines()]

    async def verdict(self, verb: str, group_id: str, **more: Any) -> tuple[int, Any]:
        path = f"/rollout/{self.rollout_id}/{verb}"
        return await self._served.post(path, group_id=group_id, **more)

    async def progress(self) -> Any:
        return await get(self._served, f"/rollout/{self.rollout_id}")


@contextlib.asynccontextmanager
async def rollout(served: Served, groups: Any, **options: Any) -> AsyncIterator[Stream]:
    """Starts a rollout with SEED."""
    body = {"groups": groups, "seed": SEED, **options}
    async with served.session.post(f"{served.url}/rollout", json=body) as reply:
        assert reply.status == 200, await reply.text()
        yield Stream(served, reply)


async def lines_of(served: Served, groups: Any, **options: Any) -> list[dict[str, Any]]:
    """Returns all lines of a rollout with SEED."""
    async with rollout(served, groups, **options) as stream:
        return await stream.rest()


async def get(served: Served, path: str, status: int = 200) -> Any:
    found, reply = await served.ask("GET", path)
    assert found == status, reply
    return reply


def prompts(count: int, n: int = 2, **fields: Any) -> list[dict[str, Any]]:
    """Returns groups of different prompts, named `g0` on."""
    return [
        {"id": f"g{number}", "prompt_ids": [5, 6, number + 1], "n": n, **fields}
        for number in range(count)
    ]


def groups_of(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Returns the samples of each delivered group; no group may come twice."""
    found = [line for line in lines if line["event"] == "group"]
    groups = {line["group_id"]: line["samples"] for line in found}
    assert len(groups) == len(found)
    return groups


def assert_exact(
    samples: list[dict[str, Any]], fake: FakeSGLang, limit: int, n: int = 2, seed: int = SEED
) -> None:
    """Asserts that a group's samples are those of undivided calls, each once."""
    assert [sample["index"] for sample in samples] == list(range(n))
    for sample in samples:
        assert sample["seed"] == derived_seed(seed, sample["index"], sample["group_id"])
        whole = response_of(sample["seed"], len(sample["prompt_ids"]), fake.longest)
        assert sample["response_ids"] == whole[:limit]
        assert len(sample["rollout_log_probs"]) == len(sample["response_ids"])
