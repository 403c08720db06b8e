"""Requests that wait on a real engine for KV that is never read are found, and sent again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import ChunkRecalled
from seer_sgl.kvpool import hicache
from seer_sgl.timing import DEFAULT
from seer_sgl.types import Chunk, ChunkResult
from tests.e2e.compare import Samples, assert_identical, rolled
from tests.e2e.pools import local, pooled
from tests.support.kv_faults import Fault, Faults

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1800)]

PROMPTS = 4
SHORT = {"max_response_len": 700}
NEVER_S = 100_000.0


class Moves(Observer):
    """The chunks that were sent and lost."""

    def __init__(self) -> None:
        self.sent_chunks: list[Chunk] = []
        self.losses: list[ChunkResult] = []

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.sent_chunks.append(chunk)

    @override
    def lost(self, result: ChunkResult) -> None:
        self.losses.append(result)


async def whole(folder: Path) -> list[Samples]:
    """Returns the samples of two rollouts on one engine without a pool, undivided."""
    plain = local(1, scheduling={"divide": False}, sampling=SHORT)
    async with Rollout(plain, log_dir=folder) as rollout:
        return [(await rolled(rollout, PROMPTS))[0] for _ in range(2)]


@pytest.mark.parametrize("backend", ["file", "mooncake"])
async def test_reads_that_never_return_cost_chunks_and_no_sample(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    """The engine's own time limits are off, so the driver has to find them."""
    calm_samples, samples = await whole(tmp_path / "plain")
    monkeypatch.setattr(hicache, "READ_BASE_S", NEVER_S)
    faults = Faults(tmp_path / "faults", stuck_s=NEVER_S)
    for name, value in faults.variables.items():
        monkeypatch.setenv(name, value)
    config = local(2, kv_pool=pooled(backend), sampling=SHORT)
    placement, moves = AlwaysElsewhere(fetch=True), Moves()
    async with Rollout(config, placement=placement, log_dir=tmp_path / "logs") as rollout:
        calm, report = await rolled(rollout, PROMPTS)
        assert_identical(calm_samples, calm)
        assert report["fetches"] > 0
        print(backend, "calm", figures(report))
        faults.set(Fault("read", "block"))
        struck, report = await asyncio.wait_for(rolled(rollout, PROMPTS, [moves]), 600)
        assert_identical(samples, struck)
        print(backend, "struck", figures(report))
        faults.set()
    lost = [result.chunk for result in moves.losses]
    (name,) = {chunk.engine_id for chunk in lost}
    assert {type(result.error) for result in moves.losses} == {ChunkRecalled}
    assert len(lost) == report["lost_chunks"]
    assert all(chunk.reads for chunk in lost), "the next chunks read nothing, and do not wait"
    (engine,) = (each for each in report["engines"] if each["engine_id"] == name)
    assert engine["kv_wait_s"] >= DEFAULT.kv_least_s
    assert not all(chunk.reads for chunk in moves.sent_chunks if chunk.engine_id == name)
    assert all(chunk.reads for chunk in moves.sent_chunks if chunk.engine_id != name)
    assert all(len(each["states"]) == 1 for each in report["engines"]), "healthy all the time"
    assert (report["respawns"], report["failed_requests"], report["wasted_tokens"]) == (0, 0, 0)
    assert any(f"engine {name} has room, and requests in its queue" in line for line in log_lines)


def figures(report: Any) -> dict[str, Any]:
    names = ("wall_s", "chunks", "fetches", "recomputed_tokens", "lost_chunks", "kv_wait_s")
    return {name: report[name] for name in names}
