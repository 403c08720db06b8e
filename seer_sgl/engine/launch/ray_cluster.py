"""Opens the Ray cluster of `engines.launch: ray`. The only module that imports Ray's launcher."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

from seer_sgl.config import EnginesConfig, KvPoolConfig, with_values
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.mooncake import Machines
from seer_sgl.timing import DEFAULT, Timing

from .launcher import Launcher
from .process import api_key
from .ray_host import is_loopback
from .server import ServerPlan, ranks

ADDRESS = "RAY_ADDRESS"  # Ray's environment variable
LOCAL = "local"
OWN_STORE_BYTES = 80 << 20  # of a local Ray; its least is 75 MiB, and no engine uses it
CONNECT_S = 5.0
# Ray's own: nodes on this machine use 127.0.0.1 instead of its address on the network.
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray's own: an actor without GPUs keeps the variables of its node. Without it Ray warns.
KEEP_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Cluster(NamedTuple):
    """A Ray cluster that this process is connected to.

    `address`: of this process's node, as other nodes reach it. `resources`: of one engine.
    """

    address: str
    resources: Mapping[str, float]
    timing: Timing = DEFAULT

    @property
    def loopback(self) -> bool:
        """Whether all nodes are on this machine, and reach each other by loopback."""
        return is_loopback(self.address)

    def launcher(self, plan: ServerPlan, log_dir: Path) -> Launcher:
        """Returns the launcher of engines on this cluster."""
        from .ray import RayLauncher

        return RayLauncher(plan, self.resources, log_dir, self.timing.ray_room_s)

    def store_machines(self, config: KvPoolConfig, log_dir: Path) -> Machines:
        """Returns where the processes of a KV pool run: its store nodes on this cluster."""
        from .ray_stores import RayStore

        def store(
            index: int, settings: Mapping[str, str], environment: Mapping[str, str]
        ) -> RayStore:
            return RayStore(
                index,
                settings,
                environment,
                memory=config.memory_bytes(),
                log_dir=log_dir,
                place_s=self.timing.ray_store_s,
            )

        return Machines(self.address, store)


@contextlib.asynccontextmanager
async def open_cluster(config: EnginesConfig, timing: Timing = DEFAULT) -> AsyncIterator[Cluster]:
    """Connects to the cluster of the config, or starts a local one for the block.

    A process that is connected to Ray already keeps its connection. Raises ConfigError if Ray is
    not installed or the cluster cannot be used.
    """
    address = config.ray_address or os.environ.get(ADDRESS) or LOCAL
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
        resources = config.ray_resources or {processor: ranks(config.flags())}
        yield Cluster(ray.util.get_node_ip_address(), resources)
    finally:
        if not joined:
            await asyncio.to_thread(ray.shutdown)


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


def with_key(config: EnginesConfig, cluster: Cluster, new_key: str) -> EnginesConfig:
    """Returns the config with the API key that its servers need.

    On a network it is `new_key` if none is set: a server beyond loopback is never open.
    """
    key = api_key(config) or (None if cluster.loopback else new_key)
    return with_values(config, {"api_key": key})
