"""A process that dies while KV moves costs time, but never a sample or a token."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.driver.observer import Observer
from seer_sgl.kvpool.node import P2P
from seer_sgl.processes import free_port
from seer_sgl.types import Chunk, ChunkResult
from tests.e2e.compare import Samples, assert_identical, by_key
from tests.e2e.conftest import HELD_OUT
from tests.e2e.test_pool import WARM_UP_OBJECTS, local, pooled
from tests.helpers import Returns
from tests.processes import command_of

pytestmark = [pytest.mark.own_engines, pytest.mark.timeout(1800)]

PROMPTS = 4
SHORT = {"max_response_len": 1000}
AFTER_CHUNKS = 40  # of about 150: KV is in the pool, and most of the run is left


class Strike(Returns):
    """Calls `deed` once, after AFTER_CHUNKS chunks; with `engine`, right after a chunk was sent to
    that engine, so that the engine certainly loses a chunk.
    """

    def __init__(self, deed: Callable[[], None], engine: str | None = None) -> None:
        self._deed = deed
        self._engine = engine
        self._returned = 0
        self.struck = False

    @override
    def returned(self, result: ChunkResult) -> None:
        self._returned += 1

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        here = self._engine in (None, chunk.engine_id)
        if here and not self.struck and self._returned >= AFTER_CHUNKS:
            self.struck = True
            self._deed()


def kill(*words: str) -> None:
    """Sends SIGKILL to the process group of the child whose command line has all the words."""
    for process in psutil.Process().children():
        if set(words) <= set(command_of(process)):
            os.killpg(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no process {words}")


@contextlib.contextmanager
def pool_client(master: str) -> Iterator[Any]:
    """Yields a Mooncake client that contributes no memory. Raises ConnectionError."""
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    hostname = f"127.0.0.1:{free_port()}"
    if client.setup(hostname, P2P, 0, 1 << 24, "tcp", "", master) != 0:
        raise ConnectionError(master)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def filled(master: str) -> Iterator[None]:
    """Fills the pool with objects that cannot be evicted, and removes them at the end."""
    from mooncake.store import ReplicateConfig

    rubbish: list[str] = []
    names = (f"rubbish{number}" for number in itertools.count())
    pinned = ReplicateConfig()
    pinned.with_hard_pin = True

    def fill(size: int) -> int:
        """Puts objects until that fails several times in a row. Returns their number."""
        before, failures = len(rubbish), 0
        while failures < 5:
            name = next(names)
            if client.put(name, bytes(size), pinned) == 0:
                rubbish.append(name)
                failures = 0
            else:
                failures += 1
                time.sleep(0.1)
        return len(rubbish) - before

    with pool_client(master) as client:
        for size in (1 << 20, 1 << 16, 1 << 12):
            fill(size)
        assert len(rubbish) > 16
        yield
        # Since then the engines' warm-up objects, 4 KB each, may have been evicted.
        late = fill(1 << 12)
        client.batch_remove(rubbish, True)
    assert late <= WARM_UP_OBJECTS, "the pool is still full"


def takes_pages(master: str) -> bool:
    """Returns whether the Mooncake behind `master` stores objects."""
    with contextlib.suppress(ConnectionError), pool_client(master) as client:
        return bool(client.put("rubbish", b"rubbish") == 0)
    return False


async def run(rollout: Rollout, *observers: Observer) -> tuple[Samples, Any]:
    prompts = rollout.read_prompts(HELD_OUT)[:PROMPTS]
    groups = [group async for group in rollout.run(prompts, observers)]
    return by_key([s for group in groups for s in group.samples]), rollout.report()


def master_of(lines: list[str]) -> str:
    line = next(line for line in lines if "Mooncake master at" in line)
    return line.split("master at ")[1].split(",")[0]


def restarted(lines: list[str], node: str) -> bool:
    return any(
        line.startswith(f"KV pool: {node}") and "is being restarted" in line for line in lines
    )


async def until(done: Callable[[], bool]) -> None:
    for _ in range(600):
        if await asyncio.to_thread(done):
            return
        await asyncio.sleep(0.5)
    raise AssertionError("it never came true")


async def test_nothing_that_dies_costs_a_sample_or_a_token(
    tmp_path: Path, log_lines: list[str]
) -> None:
    plain = local(1, scheduling={"divide": False}, sampling=SHORT)
    async with Rollout(plain, log_dir=tmp_path / "plain") as rollout:
        whole = [(await run(rollout))[0] for _ in range(6)]

    pool = pooled("mooncake", memory="32mb")
    divided = local(2, kv_pool=pool, scheduling={"chunk_tokens": 64}, sampling=SHORT)
    async with Rollout(
        divided,
        log_dir=tmp_path / "pool",
        placement=AlwaysElsewhere(fetch=True, alone=True),
    ) as rollout:
        with filled(master_of(log_lines)):
            parts, report = await run(rollout)
        assert_identical(whole[0], parts)

        for number, node in ((1, "store"), (2, "master")):
            strike = Strike(lambda node=node: kill("seer_sgl.kvpool.node", node))  # type: ignore[misc]
            parts, report = await run(rollout, strike)
            assert strike.struck
            assert_identical(whole[number], parts)
            assert report["lost_chunks"] == 0
            named = [each["name"] for each in report["processes"]]
            assert named == ["KV pool: master", "KV pool: store0"]
            await until(lambda: restarted(log_lines, node))  # noqa: B023 (awaited at once)
            await until(lambda: takes_pages(master_of(log_lines)))

        parts, report = await run(rollout)
        assert_identical(whole[3], parts)
        assert report["cached_tokens"]["storage"] > 0, "the pool works again"

        doomed = rollout.engines[1]
        port = doomed.url.rpartition(":")[2]
        strike = Strike(lambda: kill("--port", port), doomed.engine_id)
        parts, report = await run(rollout, strike)
        assert strike.struck
        assert_identical(whole[4], parts)
        assert report["lost_chunks"] > 0
        await until(lambda: rollout.driver.available(doomed.engine_id))
        parts, report = await run(rollout)
        assert_identical(whole[5], parts)
        assert report["engines"][1]["chunks"] > 0, "it was started again"
