"""The HiCache flags and environment that connect SGLang engines to the pool."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.config import FlagValue, KvPoolConfig, with_values
from seer_sgl.errors import ConfigError
from seer_sgl.processes.child import free_port, own_address
from seer_sgl.processes.restarts import Restarts
from seer_sgl.timing import DEFAULT, Timing

from .mooncake import Machines, open_mooncake, port_environment
from .node import P2P
from .temporary import temporary_folder

FILE_DIRECTORY = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"  # SGLang's own
NAMESPACE = "SEER_SGL_POOL_NAMESPACE"  # keeps the fleets that share a pool apart

# The host memory of an engine holds a copy of all KV that the device caches, and beyond that what
# is being fetched: SGLang drops no host copy while the device has the KV. What does not fit is
# computed again. The KV of a GPU is so large that a tenth of it holds many requests, and its host
# copy is page-locked. The few thousand tokens of an engine on a CPU need as much again.
GPU_HOST_RATIO = 1.1
CPU_HOST_RATIO = 2.0

READ_S_PER_KI_TOKEN = 1.0  # beside `Timing.pool_read_s`


class Pool(msgspec.Struct, frozen=True):
    """The settings of an open KV pool for engines. `master`: host:port of Mooncake's master."""

    config: KvPoolConfig
    master: str | None = None
    namespace: str = ""
    read_s: float = DEFAULT.pool_read_s

    def flags(self, gpu: bool) -> dict[str, FlagValue]:
        """Returns the SGLang flags of one engine, with or without a GPU; none without a pool.

        The write policy is write_through, because the other policies do not write output tokens.
        The prefetch policy is timeout: wait_complete waits for ever for a read that fails, and
        best_effort stops a read early and hit no pages at all.
        """
        config = self.config
        if config.backend == "none":
            return {}
        extra: dict[str, Any] = {
            "prefetch_threshold": config.page_size,
            "prefetch_timeout_base": self.read_s,
            "prefetch_timeout_per_ki_token": READ_S_PER_KI_TOKEN,
        }
        if config.backend == "mooncake":
            extra |= {
                "master_server_address": self.master,
                "local_hostname": f"{own_address(self.master or '')}:{free_port()}",
                "metadata_server": P2P,
                "protocol": config.protocol,
                "device_name": config.device,
                "global_segment_size": 0,  # an engine's death takes no KV with it
            }
        return {
            "page-size": config.page_size,
            "enable-hierarchical-cache": True,
            "hicache-ratio": host_ratio(config, gpu),
            "hicache-write-policy": "write_through",
            "hicache-storage-backend": config.backend,
            "hicache-storage-prefetch-policy": "timeout",
            "hicache-storage-backend-extra-config": json.dumps(extra),
            "enable-cache-report": True,
        }

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of an engine's process."""
        environment = {NAMESPACE: self.namespace}
        if self.config.backend == "mooncake":
            environment |= port_environment(self.config)
        if self.config.backend == "file" and self.config.directory:
            environment[FILE_DIRECTORY] = self.config.directory
        return environment


def host_ratio(config: KvPoolConfig, gpu: bool) -> float:
    """Returns the host KV tokens per device KV token of an engine with or without a GPU."""
    return config.host_ratio or (GPU_HOST_RATIO if gpu else CPU_HOST_RATIO)


@contextlib.asynccontextmanager
async def open_pool(
    config: KvPoolConfig,
    log_dir: Path,
    machines: Machines | None = None,
    all_restarts: list[Restarts] | None = None,
    timing: Timing = DEFAULT,
) -> AsyncIterator[Pool]:
    """Opens the pool of `config` for the duration of the block. `machines`: of its store nodes.

    `all_restarts`: as in `supervised`. Raises ConfigError if the pool cannot be used as
    configured, PoolError if it does not start.
    """
    namespace, read_s = config.namespace or secrets.token_hex(4), timing.pool_read_s
    if config.backend == "none":
        yield Pool(config, None, namespace, read_s)
    elif config.backend == "file":
        with _folder(config, log_dir) as directory:
            config = with_values(config, {"directory": directory})
            yield Pool(config, None, namespace, read_s)
    else:
        async with open_mooncake(config, log_dir, machines, all_restarts, timing) as master:
            yield Pool(config, master, namespace, read_s)


@contextlib.contextmanager
def _folder(config: KvPoolConfig, log_dir: Path) -> Iterator[str]:
    """Yields the folder of the file backend; without a configured one, one for this block."""
    path = Path(config.directory or log_dir)
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            if config.directory is None:
                path = stack.enter_context(temporary_folder(path.resolve()))
        except OSError as error:
            raise ConfigError(f"kv_pool.directory: {path}: {error.strerror}") from error
        yield str(path)
