"""Opens the Ray cluster of `engines.launch: ray`. The only module that imports Ray's launcher."""

import asyncio
import contextlib
import functools
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from seer_sgl.config import FleetConfig, RayEngines, bytes_of, with_values
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.mooncake import Machines
from seer_sgl.processes.loopback import is_loopback
from seer_sgl.timing import DEFAULT, Timing

from .exact import require_exact
from .launcher import Launcher, Site
from .process import api_key
from .rank_count import ranks
from .server import ServerPlan

ADDRESS = "RAY_ADDRESS"  # Ray's environment variable
LOCAL = "local"
OWN_STORE_BYTES = 80 << 20  # of a local Ray; its least is 75 MiB, and no engine uses it
CONNECT_S = 5.0
# Ray's own: nodes on this machine use 127.0.0.1 instead of its address on the network.
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray's own: an actor without GPUs keeps the variables of its node. Without it Ray warns.
KEEP_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextlib.asynccontextmanager
async def open_cluster(
    config: FleetConfig, engines: RayEngines, timing: Timing = DEFAULT
) -> AsyncIterator[Site]:
    """Connects to the cluster of the config, or starts a local one for the block.

    A process that is connected to Ray already keeps its connection. Raises ConfigError if Ray is
    not installed or the cluster cannot be used.
    """
    address = engines.ray_address or os.environ.get(ADDRESS) or LOCAL
    for name, value in (KEEP_DEVICES | (ON_LOOPBACK if _on_loopback(address) else {})).items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "engines.launch: ray is not installed: pip install 'seer-sgl[ray]'"
        ) from error
    joined = ray.is_initialized()
    if not joined:
        # In a thread, because it blocks, and takes over SIGTERM in the main thread.
        await asyncio.to_thread(_connect, address)
    try:
        total = await asyncio.to_thread(ray.cluster_resources)
        processor = "GPU" if total.get("GPU") else "CPU"
        resources = engines.ray_resources or {processor: ranks(engines.flags())}
        yield cluster_site(config, ray.util.get_node_ip_address(), resources, timing)
    finally:
        if not joined:
            await asyncio.to_thread(ray.shutdown)


def cluster_site(
    config: FleetConfig, address: str, resources: Mapping[str, float], timing: Timing = DEFAULT
) -> Site:
    """Returns the site of engines on a cluster; this process's node has the `address`.

    On a network, servers and pool ports are open to other machines, the servers with an API key.
    `resources`: of one engine. Raises ConfigError if the engines cannot be exact.
    """
    # The nodes have SGLang and the model; this machine may have neither.
    require_exact(config, "GPU" in resources)
    network = not is_loopback(address)
    key = api_key(config.engines) or (secrets.token_urlsafe(32) if network else None)
    engines = with_values(config.engines, {"api_key": key})
    pool = with_values(config.kv_pool, {"open_ports": network})

    def launcher(plan: ServerPlan, log_dir: Path) -> Launcher:
        from .ray import RayLauncher

        return RayLauncher(plan, resources, log_dir, timing.ray_room_s)

    def machines(log_dir: Path) -> Machines:
        from .ray_stores import RayStore

        memory, place_s = bytes_of(pool.memory), timing.ray_store_s
        store = functools.partial(RayStore, memory=memory, log_dir=log_dir, place_s=place_s)
        return Machines(address, store)

    return Site(config._replace(engines=engines, kv_pool=pool), address, launcher, machines)


def _connect(address: str) -> None:
    import ray

    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if address == LOCAL:
        ray.init(
            address=LOCAL,
            include_dashboard=False,
            object_store_memory=OWN_STORE_BYTES,
            **quiet,
        )
        return
    _require_answer(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:  # other versions: RuntimeError
        why = " ".join(str(error).split())
        raise ConfigError(f"engines.ray_address: {address}: {why}") from error


def _require_answer(address: str) -> None:
    """Raises ConfigError if nothing answers at an address: Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"engines.ray_address: {address}: {why}") from error


def _on_loopback(address: str) -> bool:
    return address == LOCAL or address.rpartition(":")[0] in ("127.0.0.1", "localhost")
