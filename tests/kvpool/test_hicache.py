"""The flags and environment of an engine for each kind of pool."""

import json
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.config import KvPoolConfig
from seer_sgl.config.validate import POOL_FLAGS
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool import hicache
from seer_sgl.kvpool.hicache import FILE_DIRECTORY, NAMESPACE, Pool, open_pool
from seer_sgl.processes import loopback
from seer_sgl.processes.child import own_address
from seer_sgl.timing import DEFAULT, Timing

READS = {
    "prefetch_timeout_base": DEFAULT.pool_read_s,
    "prefetch_timeout_per_ki_token": hicache.READ_S_PER_KI_TOKEN,
}


def extra_of(pool: Pool) -> dict[str, Any]:
    flag = pool.flags(gpu=False)["hicache-storage-backend-extra-config"]
    assert isinstance(flag, str)
    extra: dict[str, Any] = json.loads(flag)
    return extra


def test_without_a_pool_an_engine_gets_no_flags() -> None:
    assert Pool(KvPoolConfig()).flags(gpu=False) == {}


@pytest.mark.parametrize("backend", ["file", "mooncake"])
def test_every_pool_writes_all_tokens_through_and_waits_for_a_read_for_a_limited_time(
    backend: Any,
) -> None:
    flags = Pool(KvPoolConfig(backend=backend, page_size=16, host_ratio=3.5), "h:1").flags(
        gpu=False
    )
    assert flags["hicache-storage-backend"] == backend
    assert flags["page-size"] == 16
    assert flags["hicache-ratio"] == 3.5
    assert flags["hicache-write-policy"] == "write_through"
    assert flags["hicache-storage-prefetch-policy"] == "timeout"
    assert flags["enable-hierarchical-cache"] is True
    assert flags["enable-cache-report"] is True
    assert set(flags) <= set(POOL_FLAGS), "a user cannot set them"


def test_a_gpu_has_host_memory_for_a_tenth_more_than_its_kv_and_a_cpu_for_twice_as_much() -> None:
    assert [
        Pool(KvPoolConfig(backend="file")).flags(gpu)["hicache-ratio"] for gpu in (True, False)
    ] == [1.1, 2.0]
    chosen = Pool(KvPoolConfig(backend="file", host_ratio=1.5))
    assert chosen.flags(gpu=True)["hicache-ratio"] == 1.5


def test_a_mooncake_engine_joins_the_master_and_lends_no_memory() -> None:
    config = KvPoolConfig(backend="mooncake", page_size=16, protocol="rdma", device="mlx5_0")
    extra = extra_of(Pool(config, "10.0.0.1:50051"))
    host, _, port = extra.pop("local_hostname").partition(":")
    assert (host, int(port) > 0) == (own_address("10.0.0.1:50051"), True)
    assert extra == {
        **READS,
        "prefetch_threshold": 16,
        "master_server_address": "10.0.0.1:50051",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "rdma",
        "device_name": "mlx5_0",
        "global_segment_size": 0,
    }


def test_a_file_engine_is_told_nothing_of_mooncake() -> None:
    assert extra_of(Pool(KvPoolConfig(backend="file", page_size=32))) == {
        **READS,
        "prefetch_threshold": 32,
    }


async def test_a_pool_has_a_namespace_of_its_own_or_the_one_it_was_given(tmp_path: Path) -> None:
    async def namespace_of(config: KvPoolConfig) -> str:
        async with open_pool(config, tmp_path) as pool:
            assert pool.environment() == {NAMESPACE: pool.namespace}
            return pool.namespace

    own = {await namespace_of(KvPoolConfig()) for _ in range(2)}
    assert len(own) == 2
    assert "" not in own
    assert await namespace_of(KvPoolConfig(namespace="run-7")) == "run-7"


async def test_a_file_pool_makes_its_folder_and_tells_the_engines(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "pages"
    config = KvPoolConfig(backend="file", directory=str(folder))
    for _ in range(2):  # the second time the folder exists
        timing = Timing(pool_read_s=9.0)
        async with open_pool(config, tmp_path / "logs", timing=timing) as pool:
            assert folder.is_dir()
            assert extra_of(pool)["prefetch_timeout_base"] == 9.0
            assert pool.environment() == {FILE_DIRECTORY: str(folder), NAMESPACE: pool.namespace}
            assert pool.master is None
    assert folder.is_dir(), "the stored pages outlive the pool"


async def test_a_file_pool_without_a_folder_has_one_until_it_is_closed(tmp_path: Path) -> None:
    async with open_pool(KvPoolConfig(backend="file"), tmp_path / "logs") as pool:
        folder = Path(pool.environment()[FILE_DIRECTORY])
        assert folder.is_absolute()
        assert folder.parent == tmp_path / "logs"
        (folder / "page.bin").touch()
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "own"),
    [
        ({"backend": "mooncake", "directory": "/x"}, {loopback.ONLY: "1"}),
        ({"backend": "mooncake", "open_ports": True}, {}),
        ({"backend": "file", "directory": "/x"}, {FILE_DIRECTORY: "/x"}),
    ],
)
def test_an_engine_keeps_its_mooncake_to_this_machine_and_a_file_pool_names_its_folder(
    keys: dict[str, Any], own: dict[str, str]
) -> None:
    pool = Pool(KvPoolConfig(**keys), "h:1")
    assert pool.environment() == {NAMESPACE: pool.namespace, **own}


@pytest.mark.parametrize(
    ("below", "why"), [("file/pages", "Not a directory"), ("file", "File exists")]
)
async def test_a_folder_that_cannot_be_made_is_one_line_that_names_the_key(
    tmp_path: Path, below: str, why: str
) -> None:
    (tmp_path / "file").touch()
    config = KvPoolConfig(backend="file", directory=str(tmp_path / below))
    with pytest.raises(ConfigError) as raised:
        async with open_pool(config, tmp_path):
            pass
    assert str(raised.value) == f"kv_pool.directory: {tmp_path / below}: {why}"
