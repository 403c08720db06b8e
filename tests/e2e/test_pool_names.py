"""KV of other weights or of another layout is never read, on real servers that share a Mooncake."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from seer_sgl.config import FlagValue, KvPoolConfig
from seer_sgl.engine.launch.process import server_flags
from seer_sgl.kvpool.hicache import open_pool
from tests.e2e.conftest import MODEL, SGLANG, servers, two_urls
from tests.e2e.draws import clients
from tests.e2e.rig import PAGE, WEIGHTS, Rig
from tests.e2e.weights import other_weights

pytestmark = pytest.mark.shared_engines

PROMPT = [3 + (7 * i * i + i) % 60 for i in range(600)]
FULL_PAGES = 599 // PAGE * PAGE  # the last token is always computed
STORE_S = 60
Session = aiohttp.ClientSession


class Server:
    """A client for a server."""

    def __init__(self, url: str, session: Session) -> None:
        self._url = url
        self._session = session

    async def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        async with self._session.post(self._url + path, json=body or {}) as reply:
            return json.loads(await reply.text()) if path == "/generate" else reply.status

    async def update_weights(self, update: dict[str, str]) -> int:
        """Updates the weights after a flush. SGLang asserts that it can flush its cache, which
        needs all stores of KV to be complete."""
        assert await self.call("/flush_cache?timeout=30") == 200
        status: int = await self.call("/update_weights_from_disk", update)
        return status

    async def generate(self, prompt: Sequence[int] = PROMPT) -> tuple[list[int], dict[str, int]]:
        """Returns 40 seeded tokens after a prompt, and its cached tokens by tier."""
        meta = await self.answer(prompt)
        found = meta["cached_tokens_details"] or {"device": 0, "host": 0, "storage": 0}
        return [token[1] for token in meta["output_token_logprobs"]], found

    async def answer(self, prompt: Sequence[int]) -> dict[str, Any]:
        """Returns SGLang's `meta_info` of 40 seeded tokens after a prompt."""
        sampling = {"max_new_tokens": 40, "ignore_eos": True, "sampling_seed": 5}
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        meta: dict[str, Any] = (await self.call("/generate", body))["meta_info"]
        return meta

    async def generate_through(
        self, update: dict[str, Any], mode: str, prompt: Sequence[int], after: int
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Generates 200 tokens and updates the weights after `after` tokens. Returns the tokens and
        the spans of weight versions."""
        sampling = {"max_new_tokens": 200, "ignore_eos": True, "sampling_seed": 6}
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        updated, last = False, {}
        async with self._session.post(self._url + "/generate", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                last = json.loads(line.removeprefix(b"data: "))
                if not updated and last["meta_info"]["completion_tokens"] >= after:
                    await self.update_paused(update, mode)
                    updated = True
        assert updated
        return last["output_ids"], last["meta_info"]["weight_versions"]

    async def update_paused(self, update: dict[str, Any], mode: str) -> None:
        """Updates the weights in a pause, without a flush: SGLang cannot flush its cache while
        requests run."""
        assert await self.call("/pause_generation", {"mode": mode}) == 200
        kept = update | {"flush_cache": False}
        assert await self.call("/update_weights_from_disk", kept) == 200
        assert await self.call("/continue_generation") == 200

    async def used_tokens(self) -> int:
        """Returns the tokens in use, of running requests and in the cache."""
        async with self._session.get(f"{self._url}/v1/loads") as reply:
            return int((await reply.json())["loads"][0]["num_used_tokens"])

    async def weights(self) -> str:
        """Returns the name of the weights in the plugin's report."""
        async with self._session.get(f"{self._url}/server_info") as reply:
            return str((await reply.json())["internal_states"][0]["seer_sgl"]["weights"])


@contextlib.asynccontextmanager
async def of_another_layout(rig: Rig, session: Session, logs: Path) -> AsyncIterator[Server]:
    """Yields a server on the rig's pool that keeps KV in another layout, and prefills in parts."""
    async with open_pool(KvPoolConfig(**rig.fleet()["kv_pool"]), logs) as pool:
        own: dict[str, FlagValue] = {
            "model-path": str(MODEL),
            "chunked-prefill-size": 64,
            "hicache-mem-layout": "page_first_direct",
            "hicache-io-backend": "direct",
        }
        urls, flags = two_urls()[:1], server_flags(SGLANG | pool.flags(gpu=False) | own)
        with servers(urls, [flags], logs, pool.environment()):
            yield Server(urls[0], session)


async def stored(server: Server) -> None:
    """Waits until the KV of PROMPT is found in the pool after a flush of the server's cache."""
    async with asyncio.timeout(STORE_S):
        while True:
            await asyncio.sleep(0.2)
            await server.call("/flush_cache")
            if (await server.generate())[1]["storage"] == FULL_PAGES:
                return


async def test_kv_is_read_under_its_own_weights_and_layout_only(rig: Rig, tmp_path: Path) -> None:
    """`old` and `new`, engines of the rig, have the first and the changed weights throughout."""
    changed = other_weights(tmp_path / "changed")
    async with (
        clients() as session,
        of_another_layout(rig, session, tmp_path) as server,
    ):
        old, new = Server(rig.urls[0], session), Server(rig.plain, session)
        # The version's name is the same: it says nothing about the weights.
        update = {"model_path": str(changed), "weight_version": WEIGHTS}
        assert await new.update_weights(update) == 200
        try:
            await check(server, old, new, changed)
        finally:
            assert await new.update_weights(update | {"model_path": str(MODEL)}) == 200


async def check(server: Server, old: Server, new: Server, changed: Path) -> None:
    """Checks that `server` reads KV of its weights and its layout only."""
    assert await server.weights() == await old.weights() != await new.weights()
    before, found = await old.generate()
    assert found["storage"] == 0
    await stored(old)
    same, found = await server.generate()
    assert same == before
    cached = sum(found[tier] for tier in ("device", "host", "storage"))
    assert cached == 0, "all pages are of another layout"
    await stored(server)

    update = {"model_path": str(changed), "weight_version": "2"}
    assert await server.update_weights(update) == 200
    expected, _ = await new.generate()
    assert expected != before, "the weights make a difference"
    after, found = await server.generate()
    assert after == expected
    assert sum(found[tier] for tier in ("device", "host", "storage")) == 0
    await stored(server)

    assert await server.update_weights({"model_path": str(MODEL)}) == 200
    back, found = await server.generate()
    assert back == before
    assert found["storage"] == FULL_PAGES, "the earlier weights, without a version name"

    for mode in ("in_place", "retract"):
        await check_update_of_running(server, old, new, changed, mode)
    await check_update_in_a_long_prompt(server, old, new, changed)


async def check_update_of_running(
    server: Server, old: Server, new: Server, changed: Path, mode: str
) -> None:
    """Checks that a request that runs during a weight update leaves no mixed KV under either name.
    `server` has the weights of `old`, and has them again afterwards."""
    prompt = [len(mode), *PROMPT]
    update = {"model_path": str(changed), "weight_version": f"new, {mode}"}
    response, spans = await server.generate_through(update, mode, prompt, 40)
    assert len(spans) == 2, "the request ran under both weights"
    text = [*prompt, *response]
    assert await server.weights() == await new.weights()
    assert (await server.generate(text))[0] == (await new.generate(text))[0]
    assert (await server.generate(prompt))[0] == (await new.generate(prompt))[0]

    back = {"model_path": str(MODEL), "weight_version": f"old, {mode}"}
    assert await server.update_weights(back) == 200
    assert await server.weights() == await old.weights()
    tokens, found = await server.generate(text)
    assert sum(found[tier] for tier in ("device", "host", "storage")) <= len(prompt) + 40
    assert tokens == (await old.generate(text))[0]


async def check_update_in_a_long_prompt(
    server: Server, old: Server, new: Server, changed: Path
) -> None:
    """Checks the same for an update during a chunked prefill of a long prompt."""
    prompt = [3 + (5 * i * i + i) % 60 for i in range(6000)]
    call = asyncio.create_task(server.answer(prompt))
    async with asyncio.timeout(STORE_S):
        while True:
            await asyncio.sleep(0.01)
            if await server.used_tokens():
                break
    update = {"model_path": str(changed), "weight_version": "new, in a prompt"}
    await server.update_paused(update, "in_place")
    async with asyncio.timeout(STORE_S):
        (span,) = (await call)["weight_versions"]
    assert span["version"] == update["weight_version"], "the update came before the first token"
    assert (await server.generate(prompt))[0] == (await new.generate(prompt))[0]
    back = {"model_path": str(MODEL), "weight_version": "old, in a prompt"}
    assert await server.update_weights(back) == 200
    assert (await server.generate(prompt))[0] == (await old.generate(prompt))[0]
