"""KV moves between real SGLang servers through a real Mooncake: same tokens, almost no prefill."""

import asyncio
import json
import re
import urllib.request
from array import array
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.config import FlagValue
from seer_sgl.plugin.pool import RATE_TOKENS
from seer_sgl.sampling import Sampling
from seer_sgl.scheduling.costs import Costs
from seer_sgl.types import Prompt
from tests.e2e.compare import Migrations, Samples, assert_identical, by_key, roll
from tests.e2e.conftest import HELD_OUT, MODEL
from tests.listening import family, listeners
from tests.processes import command_of
from tests.support.timing import PATIENT

pytestmark = pytest.mark.own_engines

PAGE = 16
KEY = "the-key-of-this-fleet"
WARM_UP_OBJECTS = 2
SGLANG: dict[str, FlagValue] = {
    "dtype": "float32",
    "max-total-tokens": 16384,
    "max-running-requests": 48,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}


def local(count: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """Returns a config that starts its own servers, one core each."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"count": count, "cores": "auto", "sglang": SGLANG},
        "scheduling": {"chunk_tokens": 128, **sections.pop("scheduling", {})},
        "sampling": {"max_response_len": 3000, **sections.pop("sampling", {})},
        "rollout": {"seed": 11},
        **sections,
    }


def pooled(backend: str, **keys: Any) -> dict[str, Any]:
    return {"backend": backend, "page_size": PAGE, "memory": "256mb", **keys}


def pages_in(backend: str, folder: Path) -> int:
    """Returns the number of objects in the pool: page parts, and the engines' warm-up objects."""
    if backend == "file":
        return len(list(folder.glob("*.bin")))
    for process in psutil.Process().children():
        line = command_of(process)
        if "seer_sgl.kvpool.node" in line and "master" in line:
            port = json.loads(line[-1])["metrics_port"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/summary") as reply:
                keys = re.search(r"Keys: (\d+)", reply.read().decode())
            assert keys is not None
            return int(keys[1])
    raise AssertionError("no master")


async def assert_empties(backend: str, folder: Path) -> None:
    """Waits until the pool has no KV of the complete groups (their prompts are below a page)."""
    for _ in range(240):
        if (left := pages_in(backend, folder)) <= WARM_UP_OBJECTS:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{left} objects are left in the pool")


def assert_on_loopback(at_least: int) -> None:
    """Asserts that no port of this process and its children is reachable from another machine."""
    ports = listeners(family(psutil.Process()))
    assert [listener for listener in ports if not listener.on_loopback] == []
    assert len(ports) >= at_least, ports


def assert_private(folder: Path, logs: int) -> None:
    """Asserts that only their owner can read the logs, and that they do not contain the key."""
    files = list(folder.glob("*.log"))
    assert len(files) == logs
    for log in files:
        assert log.stat().st_mode & 0o777 == 0o600
        assert KEY not in log.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Returns all samples of one engine without a pool, undivided."""
    plain = local(1, scheduling={"divide": False})
    samples, report = asyncio.run(roll(plain, 8, log_dir=tmp_path_factory.mktemp("plain")))
    assert report["chunks"] == report["samples"] == 64
    return samples


def observed_prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list of the tokens of each prefill from which the driver learns the rate."""
    found: list[int] = []
    original = Costs.observe_prefill

    def observe(self: Costs, tokens: int, seconds: float) -> None:
        found.append(tokens)
        original(self, tokens, seconds)

    monkeypatch.setattr(Costs, "observe_prefill", observe)
    return found


async def assert_measures_a_long_prefill(
    rollout: Rollout, prompt: Prompt, prefills: list[int]
) -> None:
    """Asserts that the driver learns the rate of a prefill that is long enough for one."""
    ids = array("i", [*prompt.prompt_ids[::-1]] * RATE_TOKENS)[: 2 * RATE_TOKENS]
    few = Sampling(max_new_tokens=4)
    long = Prompt(prompt_id="long", prompt_ids=ids, n=1, sampling=few)
    assert [group.samples[0].group_id async for group in rollout.run([long])] == ["long"]
    for _ in range(600):  # the report of an engine may be late
        if prefills:
            break
        await asyncio.sleep(0.1)
    assert prefills and min(prefills) >= RATE_TOKENS


@pytest.mark.parametrize("backend", ["mooncake", "file"])
async def test_every_chunk_moves_with_the_kv_that_the_pool_has_and_no_token_changes(
    backend: str, whole: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills = observed_prefills(monkeypatch)
    seen = Migrations()
    config = local(2, kv_pool=pooled(backend, directory=str(tmp_path / "pages")))
    config["engines"]["api_key"] = KEY
    async with Rollout(
        config,
        placement=AlwaysElsewhere(fetch=True),
        log_dir=tmp_path / "pool",
        timing=PATIENT,
    ) as rollout:
        assert_on_loopback(at_least=8 if backend == "file" else 14)
        prompts = rollout.read_prompts(HELD_OUT)[:8]
        groups = [group async for group in rollout.run(prompts, [seen])]
        report = rollout.report()
        await assert_empties(backend, tmp_path / "pages")
        await assert_measures_a_long_prefill(rollout, prompts[0], prefills)
    parts = by_key([sample for group in groups for sample in group.samples])
    assert_identical(whole, parts)
    assert len(seen.recomputed) == report["migrations"] >= 200
    # An engine that is blocked for seconds reports KV as missing that arrives later, so on a busy
    # machine not every move can fetch. A move leaves no KV behind that was not reported missing.
    assert not seen.left_kv_behind
    assert report["fetches"] >= 0.5 * report["migrations"]
    within_a_page = [tokens <= PAGE + 1 for tokens in seen.recomputed_after_fetch]
    assert sum(within_a_page) >= 0.95 * len(within_a_page), seen.recomputed_after_fetch
    assert report["cached_tokens"]["storage"] > 0
    assert report["retractions"] == 0
    assert_private(tmp_path / "pool", logs=2 if backend == "file" else 4)
