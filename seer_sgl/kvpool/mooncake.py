"""Starts a local Mooncake (one master and store nodes, kept alive) or uses a running one."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seer_sgl import loopback
from seer_sgl.config import KvPoolConfig
from seer_sgl.errors import ConfigError, PoolError
from seer_sgl.kept_processes import KeptProcess, kept_alive
from seer_sgl.processes import free_port

from .node import P2P
from .packages import load_problem
from .temporary import temporary_folder

logger = logging.getLogger(__name__)
START_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 10.0
PROBE_BUFFER_BYTES = 1 << 24
POLL_S = 0.1
SSD_BUCKET_OBJECTS = 32  # objects per write
OPEN_PORTS = (
    "KV pool: Mooncake's transfer ports listen on all interfaces, and any machine that reaches "
    "them can read and write KV: block other machines with a firewall"
)
WITHOUT_LOOPBACK = (
    "kv_pool.backend: file opens no ports, kv_pool.open_ports: true leaves Mooncake's to a firewall"
)


@contextlib.asynccontextmanager
async def open_mooncake(config: KvPoolConfig, log_dir: Path) -> AsyncIterator[str]:
    """Yields the address of a master with mounted stores; the started processes end with the block.

    Raises ConfigError if Mooncake cannot run or be reached, PoolError if it does not start.
    """
    _require_mooncake()
    if config.open_ports:
        logger.warning(OPEN_PORTS)
    elif (why := loopback.refusal()) is not None:
        raise ConfigError(f"kv_pool.backend: mooncake: {why}; {WITHOUT_LOOPBACK}")
    if config.master is not None:
        await _require_master(config, config.master, log_dir)
        yield config.master
        return
    with _ssd(config) as ssd:
        async with _started(config, ssd, log_dir) as address:
            yield address


@contextlib.contextmanager
def _ssd(config: KvPoolConfig) -> Iterator[Path | None]:
    """Yields the folder for the store nodes' overflow; None without `kv_pool.ssd_path`."""
    if config.ssd_path is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder(Path(config.ssd_path)))
        except OSError as error:
            raise ConfigError(f"kv_pool.ssd_path: {config.ssd_path}: {error.strerror}") from error
        yield folder


@contextlib.asynccontextmanager
async def _started(config: KvPoolConfig, ssd: Path | None, log_dir: Path) -> AsyncIterator[str]:
    port, metrics_port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    master = _Node("master", _master_flags(config, port, metrics_port), log_dir)
    environment = port_environment(config) | _ssd_environment(config)
    stores = [
        _Node("store", _store_settings(config, address, ssd), log_dir, i, environment)
        for i in range(config.stores)
    ]
    try:
        await master.start()
        await _until(lambda: _answers(address), master)
        for store in stores:
            await store.start()
        for store in stores:
            await _until(store.mounted, store)
        logger.info(
            "KV pool: Mooncake master at %s, %d x %s", address, config.stores, config.memory
        )
        async with kept_alive([master, *stores]):
            yield address
    finally:
        await asyncio.gather(*(node.stop() for node in (*stores, master)))


class _Node(KeptProcess):
    """A process of the local Mooncake."""

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        log_dir: Path,
        index: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        name = kind if kind == "master" else f"{kind}{index}"
        super().__init__(
            f"KV pool: {name}",
            [sys.executable, "-m", "seer_sgl.kvpool.node", kind, json.dumps(settings)],
            log_dir / f"mooncake-{name}.log",
            {**os.environ, "MC_LOG_LEVEL": "WARNING", **(environment or {})},
        )

    async def mounted(self) -> bool:
        return "segment mounted" in self.log.read_text(errors="replace")


def _master_flags(config: KvPoolConfig, port: int, metrics_port: int) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "rpc_port": port,
        "rpc_address": "127.0.0.1",
        "metrics_port": metrics_port,
        "metrics_host": "127.0.0.1",
    }
    if config.ssd_path is not None:
        flags["enable_offload"] = "true"
    return flags


def _client_settings(config: KvPoolConfig, master: str) -> dict[str, str]:
    return {
        "local_hostname": f"127.0.0.1:{free_port()}",
        "metadata_server": P2P,
        "protocol": config.protocol,
        "rdma_devices": config.device,
        "master_server_addr": master,
    }


def _store_settings(config: KvPoolConfig, master: str, ssd: Path | None) -> dict[str, str]:
    settings = _client_settings(config, master) | {
        "global_segment_size": str(config.memory_bytes()),
        "local_buffer_size": "0",
    }
    if ssd is not None:
        folder = Path(tempfile.mkdtemp(prefix="store-", dir=ssd))
        settings |= {"enable_ssd_offload": "true", "ssd_offload_path": str(folder)}
    return settings


def port_environment(config: KvPoolConfig) -> dict[str, str]:
    """Returns the environment of a Mooncake client; it confines ports unless they are open."""
    return {} if config.open_ports else {loopback.ONLY: "1"}


def _ssd_environment(config: KvPoolConfig) -> dict[str, str]:
    """Returns the environment with which a store node moves evicted objects to its SSD.

    Mooncake's defaults write every ten seconds if 500 objects wait; objects evicted before are
    lost. Of its backends (0.3.13) only `bucket` limits the disk space.
    """
    if config.ssd_path is None:
        return {}
    return {
        "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
        "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(SSD_BUCKET_OBJECTS),
        "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": str(config.ssd_bytes()),
        "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "fifo",
    }


def _require_mooncake() -> None:
    if problem := load_problem():
        raise ConfigError(f"kv_pool.backend: {problem} (see `seer-sgl doctor`)")


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _require_master(config: KvPoolConfig, address: str, log_dir: Path) -> None:
    if not await _answers(address):
        raise ConfigError(f"kv_pool.master: nothing answers at {address}")
    settings = _client_settings(config, address) | {
        "global_segment_size": "0",
        "local_buffer_size": str(PROBE_BUFFER_BYTES),
    }
    node = _Node("probe", settings, log_dir, environment=port_environment(config))
    await node.start()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status = await node.wait()
            why = node.last_line()
    except TimeoutError:
        status, why = 1, f"no Mooncake master in {PROBE_TIMEOUT_S:g} s"
    finally:
        await node.stop()
    if status != 0:
        raise ConfigError(f"kv_pool.master: {address}: {why}")


async def _until(done: Callable[[], Any], node: _Node) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    while not await done():
        if node.ended or loop.time() > deadline:
            why = node.exit_reason() or f"not ready after {START_TIMEOUT_S:g} s"
            raise PoolError(f"{node.name}: {why}; its end:\n{node.log_tail()}")
        await asyncio.sleep(POLL_S)
