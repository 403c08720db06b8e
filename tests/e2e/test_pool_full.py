"""A store that is full to the brim costs time, but never a sample or a token.

tests/chaos kills stores and masters.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.kvpool.node import P2P
from seer_sgl.processes.child import free_port
from tests.e2e.compare import assert_identical, rolled
from tests.e2e.pools import WARM_UP_OBJECTS, local, pooled

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1800)]

PROMPTS = 4
SHORT = {"max_response_len": 1000}


@contextlib.contextmanager
def pool_client(master: str) -> Iterator[Any]:
    """Yields a Mooncake client that contributes no memory."""
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    hostname = f"127.0.0.1:{free_port()}"
    assert client.setup(hostname, P2P, 0, 1 << 24, "tcp", "", master) == 0
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


async def test_a_full_pool_costs_no_token_and_takes_kv_again_once_there_is_room(
    tmp_path: Path, log_lines: list[str]
) -> None:
    plain = local(1, scheduling={"divide": False}, sampling=SHORT)
    async with Rollout(plain, log_dir=tmp_path / "plain") as rollout:
        whole = [(await rolled(rollout, PROMPTS))[0] for _ in range(2)]
    pool = pooled("mooncake", memory="32mb")
    divided = local(2, kv_pool=pool, scheduling={"chunk_tokens": 64}, sampling=SHORT)
    placement = AlwaysElsewhere(fetch=True, alone=True)
    async with Rollout(divided, log_dir=tmp_path / "pool", placement=placement) as rollout:
        line = next(line for line in log_lines if "Mooncake master at" in line)
        with filled(line.split("master at ")[1].split(",")[0]):
            parts, _ = await rolled(rollout, PROMPTS)
        assert_identical(whole[0], parts)
        parts, report = await rolled(rollout, PROMPTS)
        assert_identical(whole[1], parts)
        assert report["cached_tokens"]["storage"] > 0, "the pool works again"
