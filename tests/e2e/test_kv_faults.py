"""A KV pool whose reads and writes fail or never return costs tokens, never a sample."""

import asyncio
from pathlib import Path

import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import ChunkRecalled
from seer_sgl.timing import Timing
from seer_sgl.types import Chunk, ChunkResult
from tests.e2e.compare import Samples, assert_identical, rolled
from tests.e2e.pools import local, pooled
from tests.support.kv_faults import Fault, Faults
from tests.support.waiting import until

pytestmark = [
    pytest.mark.own_engines,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.parametrize("backend", ["file", "mooncake"]),
]

PROMPTS = 4
SHORT = {"max_response_len": 700}
NEVER_S = 100_000.0
START_S = 1200.0  # a start on a busy machine takes minutes
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


def pool_of(
    backend: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, logs: Path, timing: Timing
) -> Rollout:
    """Returns a rollout on two engines, all of whose chunks move through a pool with faults."""
    for name, value in faults.variables.items():
        monkeypatch.setenv(name, value)
    config = local(2, kv_pool=pooled(backend), sampling=SHORT)
    return Rollout(config, placement=AlwaysElsewhere(fetch=True), log_dir=logs, timing=timing)


async def test_faults_of_the_pool_cost_tokens_and_no_sample(
    backend: str,
    whole: list[Samples],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    faults, undivided = Faults(tmp_path / "faults"), iter(whole)
    timing = Timing(refresh_every_s=1.0)
    async with pool_of(backend, faults, monkeypatch, tmp_path / "logs", timing) as rollout:
        samples, report = await rolled(rollout, PROMPTS)
        assert_identical(next(undivided), samples)
        assert report["fetches"] > 0
        for what, struck in ERRORS.items():
            faults.set(*struck)
            samples, report = await rolled(rollout, PROMPTS)
            assert_identical(next(undivided), samples)
            assert faults.hits >= len(THREADS), what
            assert (report["lost_chunks"], report["respawns"]) == (0, 0), what
        for what, (fault, reason) in LOST.items():
            faults.set(fault)
            samples, _ = await rolled(rollout, PROMPTS)
            assert_identical(next(undivided), samples)
            assert faults.hits == 1, what
            await out_and_back(rollout, log_lines, reason)
            faults.set()


async def out_and_back(rollout: Rollout, log_lines: list[str], reason: str) -> None:
    """Waits until the engine that reported `reason` was restarted, and serves."""
    again, ids = "is being restarted", [each.engine_id for each in rollout.engines]
    await until(lambda: any(reason in line and again in line for line in log_lines), START_S)
    await until(lambda: all(map(rollout.driver.available, ids)), START_S)


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


async def test_reads_that_never_return_cost_chunks_and_no_sample(
    backend: str,
    whole: list[Samples],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[str],
) -> None:
    """The engine's own time limits are off, so the driver has to find requests that wait for KV."""
    timing = Timing(pool_read_s=NEVER_S)
    faults, moves = Faults(tmp_path / "faults", stuck_s=NEVER_S), Moves()
    async with pool_of(backend, faults, monkeypatch, tmp_path / "logs", timing) as rollout:
        samples, report = await rolled(rollout, PROMPTS)
        assert_identical(whole[0], samples)
        assert report["fetches"] > 0
        faults.set(Fault("read", "block"))
        struck, report = await asyncio.wait_for(rolled(rollout, PROMPTS, [moves]), 600)
        assert_identical(whole[1], struck)
        faults.set()
    lost = [result.chunk for result in moves.losses]
    (name,) = {chunk.engine_id for chunk in lost}
    assert {type(result.error) for result in moves.losses} == {ChunkRecalled}
    assert len(lost) == report["lost_chunks"]
    assert all(chunk.reads for chunk in lost), "the next chunks read nothing, and do not wait"
    (engine,) = (each for each in report["engines"] if each["engine_id"] == name)
    assert engine["kv_wait_s"] >= timing.kv_least_s
    assert not all(chunk.reads for chunk in moves.sent_chunks if chunk.engine_id == name)
    assert all(chunk.reads for chunk in moves.sent_chunks if chunk.engine_id != name)
    assert all(len(each["states"]) == 1 for each in report["engines"]), "healthy all the time"
    assert (report["respawns"], report["failed_requests"], report["wasted_tokens"]) == (0, 0, 0)
    assert any(f"engine {name} has room, and requests in its queue" in line for line in log_lines)
