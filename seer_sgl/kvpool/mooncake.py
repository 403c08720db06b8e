"""Starts a local Mooncake (one master and store nodes, kept alive) or uses a running one."""

import asyncio
import contextlib
import functools
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seer_sgl.config import KvPoolConfig, bytes_of
from seer_sgl.errors import ConfigError, PoolError
from seer_sgl.processes import loopback
from seer_sgl.processes.child import free_port, last_line
from seer_sgl.processes.restarts import Restarts
from seer_sgl.processes.supervisor import (
    Supervised,
    SupervisedProcess,
    has_logged,
    supervised,
    until_ready,
)
from seer_sgl.timing import DEFAULT, Timing

from .node import MOUNTED, P2P
from .packages import load_problem

logger = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 5.0
PROBE_BUFFER_BYTES = 1 << 24
STORE_VARIABLES = {"MC_LOG_LEVEL": "WARNING"}  # of Mooncake's processes
OPEN_PORTS = (
    "KV pool: Mooncake's transfer ports listen on all interfaces, and any machine that reaches "
    "them can read and write KV: block other machines with a firewall"
)
WITHOUT_LOOPBACK = (
    "kv_pool.backend: file opens no ports, kv_pool.open_ports: true leaves Mooncake's to a firewall"
)


class Machines(NamedTuple):
    """Where a pool's processes run. `host`: this machine's address, as the store nodes reach it.

    `store`: returns store node i, with the settings and the environment of one; None: it is a
    process of this machine.
    """

    host: str = "127.0.0.1"
    store: Callable[[int, Mapping[str, str], Mapping[str, str]], Supervised] | None = None


@contextlib.asynccontextmanager
async def open_mooncake(
    config: KvPoolConfig,
    log_dir: Path,
    machines: Machines | None = None,
    all_restarts: list[Restarts] | None = None,
    timing: Timing = DEFAULT,
) -> AsyncIterator[str]:
    """Yields the address of a master with mounted stores; the started processes end with the block.

    `all_restarts`: as in `supervised`. Raises ConfigError if Mooncake cannot run or be
    reached, PoolError if it does not start.
    """
    if problem := load_problem():
        raise ConfigError(f"kv_pool.backend: {problem} (see `seer-sgl doctor`)")
    if config.open_ports:
        logger.warning(OPEN_PORTS)
    elif (why := loopback.refusal()) is not None:
        raise ConfigError(f"kv_pool.backend: mooncake: {why}; {WITHOUT_LOOPBACK}")
    if config.master is not None:
        await _require_master(config, config.master, log_dir, timing.pool_start_s)
        yield config.master
        return
    starting = _started(config, log_dir, machines or Machines(), timing.pool_start_s)
    async with starting as (address, processes), supervised(processes, all_restarts, timing):
        yield address


@contextlib.asynccontextmanager
async def _started(
    config: KvPoolConfig, log_dir: Path, machines: Machines, start_s: float
) -> AsyncIterator[tuple[str, Sequence[Supervised]]]:
    """Yields the address of a new master, and the master and its stores."""
    host, environment = machines.host, port_environment(config)
    port = free_port(host)
    address = f"{host}:{port}"
    flags = {
        "rpc_port": port,
        "rpc_address": host,
        "metrics_port": free_port(),
        "metrics_host": "127.0.0.1",
    }
    master = _node("master", flags, log_dir, environment)

    def store(index: int) -> Supervised:
        settings = _client_settings(config, address) | {
            "global_segment_size": str(bytes_of(config.memory)),
            "local_buffer_size": "0",
        }
        if machines.store is not None:
            return machines.store(index, settings, environment)
        return _node("store", settings, log_dir, environment, str(index))

    stores = [store(index) for index in range(config.stores)]
    try:
        await master.start()
        await until_ready(master, lambda: _answers(address), start_s, PoolError)
        for node in stores:
            await node.start()
        for node in stores:
            mounted = functools.partial(has_logged, node, MOUNTED)
            await until_ready(node, mounted, start_s, PoolError)
        logger.info(
            "KV pool: Mooncake master at %s, %d x %s", address, config.stores, config.memory
        )
        yield address, (master, *stores)
    finally:
        await asyncio.gather(*(node.stop() for node in (*stores, master)))


def _node(
    kind: str,
    settings: Mapping[str, Any],
    log_dir: Path,
    environment: Mapping[str, str],
    number: str = "",
) -> SupervisedProcess:
    """Returns a process of the local Mooncake, which is not started yet."""
    return SupervisedProcess(
        f"KV pool: {kind}{number}",
        node_command(kind, settings),
        log_dir / f"mooncake-{kind}{number}.log",
        {**os.environ, **STORE_VARIABLES, **environment},
    )


def node_command(kind: str, settings: Mapping[str, Any]) -> list[str]:
    """Returns the command of a process of Mooncake (node.py)."""
    return [sys.executable, "-m", "seer_sgl.kvpool.node", kind, json.dumps(settings)]


def _client_settings(config: KvPoolConfig, master: str) -> dict[str, str]:
    return {
        "local_hostname": f"127.0.0.1:{free_port()}",
        "metadata_server": P2P,
        "protocol": config.protocol,
        "rdma_devices": config.device,
        "master_server_addr": master,
    }


def port_environment(config: KvPoolConfig) -> dict[str, str]:
    """Returns the environment of a Mooncake client; it confines ports unless they are open."""
    return {} if config.open_ports else {loopback.ONLY: "1"}


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _require_master(
    config: KvPoolConfig, address: str, log_dir: Path, within_s: float
) -> None:
    if not await _answers(address):
        raise ConfigError(f"kv_pool.master: nothing answers at {address}")
    settings = _client_settings(config, address) | {
        "global_segment_size": "0",
        "local_buffer_size": str(PROBE_BUFFER_BYTES),
    }
    node = _node("probe", settings, log_dir, port_environment(config))
    await node.start()
    try:
        async with asyncio.timeout(within_s):
            status = await node.wait()
            why = last_line(node.log)
    except TimeoutError:
        status, why = 1, f"no Mooncake master in {within_s:g} s"
    finally:
        await node.stop()
    if status != 0:
        raise ConfigError(f"kv_pool.master: {address}: {why}")
