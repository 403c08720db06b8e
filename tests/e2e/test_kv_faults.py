"""A KV pool whose reads and writes fail or never return costs tokens, never a sample."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.timing import Timing
from tests.e2e.compare import Samples, assert_identical, rolled
from tests.e2e.pools import local, pooled
from tests.support.kv_faults import Fault, Faults

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(3600)]

PROMPTS = 4
SHORT = {"max_response_len": 700}
THREADS = ("lookup", "read", "write")
ERRORS = {
    "each once": [Fault(thread, "error", 1) for thread in THREADS],
    "each always": [Fault(thread, "error") for thread in THREADS],
}
LOST = {  # what the engine says then
    "a read that never returns": (Fault("read", "block"), "`read` has waited for the pool for"),
    "a write that never returns": (Fault("write", "block"), "`write` has waited for the pool for"),
    "the end of the lookups": (Fault("lookup", "end"), "`lookup` ended: SystemExit"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Samples]:
    """Returns the samples of one engine without a pool, undivided; each rollout has other seeds."""

    async def roll() -> list[Samples]:
        plain = local(1, scheduling={"divide": False}, sampling=SHORT)
        async with Rollout(plain, log_dir=tmp_path_factory.mktemp("plain")) as rollout:
            return [(await rolled(rollout, PROMPTS))[0] for _ in range(1 + len(ERRORS) + len(LOST))]

    return asyncio.run(roll())


@pytest.mark.parametrize("backend", ["file", "mooncake"])
async def test_faults_of_the_pool_cost_tokens_and_no_sample(
    backend: str,
    whole: list[Samples],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    faults = Faults(tmp_path / "faults")
    for name, value in faults.variables.items():
        monkeypatch.setenv(name, value)
    config = local(2, kv_pool=pooled(backend), sampling=SHORT)
    placement = AlwaysElsewhere(fetch=True)
    undivided = iter(whole)
    async with Rollout(
        config,
        placement=placement,
        log_dir=tmp_path / "logs",
        timing=Timing(refresh_every_s=1.0),
    ) as rollout:
        samples, calm = await rolled(rollout, PROMPTS)
        assert_identical(next(undivided), samples)
        assert calm["fetches"] > 0
        for what, struck in ERRORS.items():
            faults.set(*struck)
            samples, report = await rolled(rollout, PROMPTS)
            assert_identical(next(undivided), samples)
            assert faults.hits >= len(THREADS), what
            assert (report["lost_chunks"], report["respawns"]) == (0, 0), what
            print(backend, what, figures(report), f"calm: {figures(calm)}")
        for what, (fault, reason) in LOST.items():
            faults.set(fault)
            samples, report = await rolled(rollout, PROMPTS)
            assert_identical(next(undivided), samples)
            assert faults.hits == 1, what
            await out_and_back(rollout, log_lines, reason)
            print(backend, what, figures(report))
            faults.set()


async def out_and_back(rollout: Rollout, log_lines: list[str], reason: str) -> None:
    """Waits until the engine that reported `reason` was restarted, and serves."""
    again = "is being restarted"
    await reached(lambda: any(reason in line and again in line for line in log_lines))
    await reached(lambda: all(rollout.driver.available(each.engine_id) for each in rollout.engines))


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(1200):  # a start on a busy machine takes minutes
        while True:
            if condition():
                return
            await asyncio.sleep(0.1)


def figures(report: Any) -> dict[str, Any]:
    names = ("wall_s", "chunks", "fetches", "recomputed_tokens", "lost_chunks", "respawns")
    return {name: report[name] for name in names}
