"""What dies while KV moves costs time, never a sample and never a token."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.kvpool.node import P2P
from seer_sgl.processes import free_port
from seer_sgl.rollout.loop import Observer
from seer_sgl.types import ChunkResult
from tests.e2e.compare import Samples, assert_identical, by_key
from tests.e2e.conftest import HELD_OUT
from tests.e2e.test_pool import local, pooled

pytestmark = pytest.mark.own_engines

PROMPTS = 4
SHORT = {"max_response_len": 1000}
AFTER_CHUNKS = 40  # of a run of some 150: KV is in the pool, and much is left to do


class Strike(Observer):
    """Does something terrible once, after so many chunks."""

    def __init__(self, deed: Callable[[], None]) -> None:
        self._deed = deed
        self._left = AFTER_CHUNKS

    def returned(self, result: ChunkResult) -> None:
        """A chunk came back."""
        self._left -= 1
        if self._left == 0:
            self._deed()

    @property
    def struck(self) -> bool:
        return self._left <= 0


def kill(*words: str) -> None:
    """SIGKILL for the process group of our own child whose command line has all the words."""
    for process in psutil.Process().children():
        if all(word in process.cmdline() for word in words):
            os.killpg(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no process {words}")


class Filler:
    """Keeps a pool full of rubbish while it is entered."""

    def __init__(self, master: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._client = MooncakeDistributedStore()
        hostname = f"127.0.0.1:{free_port()}"
        assert self._client.setup(hostname, P2P, 0, 1 << 24, "tcp", "", master) == 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._fill)
        self.refused = 0

    def _fill(self) -> None:
        rubbish, number = bytes(1 << 18), 0
        while not self._over.wait(0.002):
            number += 1
            self.refused += self._client.put(f"rubbish{number}", rubbish) != 0

    def __enter__(self) -> "Filler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


async def run(rollout: Rollout, *observers: Observer) -> tuple[Samples, Any]:
    prompts = rollout.read_prompts(HELD_OUT)[:PROMPTS]
    groups = [group async for group in rollout.run(prompts, observers)]
    return by_key([s for group in groups for s in group.samples]), rollout.report()


def master_of(said: list[str]) -> str:
    line = next(line for line in said if "Mooncake master at" in line)
    return line.split("master at ")[1].split(",")[0]


async def test_nothing_that_dies_costs_a_sample_or_a_token(tmp_path: Path) -> None:
    plain = local(1, scheduling={"divide": False}, sampling=SHORT)
    async with Rollout(plain, log_dir=tmp_path / "plain") as rollout:
        whole = [(await run(rollout))[0] for _ in range(5)]

    said: list[str] = []
    pool = pooled("mooncake", memory="32mb")
    divided = local(2, kv_pool=pool, scheduling={"chunk_tokens": 64}, sampling=SHORT)
    async with Rollout(
        divided,
        log_dir=tmp_path / "pool",
        announce=said.append,
        placement=AlwaysElsewhere(fetch=True),
    ) as rollout:
        with Filler(master_of(said)) as filler:
            parts, report = await run(rollout)
        assert_identical(whole[0], parts)
        assert filler.refused > 0, "the store was full to the brim"

        for number, node in ((1, "store"), (2, "master")):
            strike = Strike(lambda node=node: kill("seer_sgl.kvpool.node", node))  # type: ignore[misc]
            parts, report = await run(rollout, strike)
            assert strike.struck
            assert_identical(whole[number], parts)
            assert report["lost_chunks"] == 0
        restarted = [line for line in said if "is started again" in line]
        assert len(restarted) == 2

        parts, report = await run(rollout)
        assert_identical(whole[3], parts)
        assert report["cached_tokens"]["storage"] > 0, "the pool works again"

        port = rollout.engines[1].url.rpartition(":")[2]
        strike = Strike(lambda: kill("--port", port))
        parts, report = await run(rollout, strike)
        assert strike.struck
        assert_identical(whole[4], parts)
        assert report["lost_chunks"] > 0
