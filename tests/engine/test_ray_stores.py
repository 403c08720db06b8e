"""Store nodes of Mooncake on a Ray cluster of several nodes on this machine."""

import asyncio
from pathlib import Path

import pytest

from seer_sgl.config import Config, KvPoolConfig, RayEngines, with_values
from seer_sgl.engine.launch.ray_cluster import open_cluster
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.hicache import open_pool
from seer_sgl.timing import Timing
from tests.support.mooncakes import has_memory, until_it_stores
from tests.support.waiting import until

from .ray_cluster import Nodes

pytestmark = pytest.mark.long
POOL = KvPoolConfig(backend="mooncake", stores=2, memory="32mb")


async def test_store_nodes_are_spread_and_a_lost_one_is_started_elsewhere(
    cluster: Nodes, tmp_path: Path, log_lines: list[str]
) -> None:
    number = cluster.add()
    engines = RayEngines(ray_address=cluster.address)
    config = Config(engines=engines, kv_pool=POOL).fleet
    async with open_cluster(config, engines) as site:
        assert site.machines is not None
        async with open_pool(POOL, tmp_path, site.machines(tmp_path)) as pool:
            assert pool.master is not None
            assert await has_memory(pool.master, tmp_path / "probe")
            logs = [tmp_path / f"mooncake-store{i}.log" for i in range(POOL.stores)]
            assert all("segment mounted" in log.read_text() for log in logs)
            for log in logs:
                log.write_text("")
            for each in range(number + 1):  # all nodes but the head, which has the driver
                if each:
                    cluster.kill(each)
            cluster.add()
            lost = "is being restarted: its node 127.0.0.1 left the cluster"
            await until(lambda: any(lost in line for line in log_lines))
            await until(lambda: any("segment mounted" in log.read_text() for log in logs))
            await until_it_stores(pool.master, tmp_path / "probe")


async def test_memory_that_no_node_has_is_one_line(cluster: Nodes, tmp_path: Path) -> None:
    engines = RayEngines(ray_address=cluster.address)
    large = with_values(POOL, {"memory": "9tb"})
    config = Config(engines=engines, kv_pool=large).fleet
    async with open_cluster(config, engines, Timing(ray_store_s=2.0)) as site:
        assert site.machines is not None
        with pytest.raises(ConfigError, match="no node of the cluster has room for"):
            async with open_pool(large, tmp_path, site.machines(tmp_path)):
                pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
