"""A store node of the KV pool on a node of a Ray cluster."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from typing_extensions import override

from seer_sgl.errors import ConfigError, SeerError
from seer_sgl.kvpool.mooncake import StoreNode
from seer_sgl.kvpool.node import MOUNTED

from .ray import CALLS, STOP_S, first_line, why_lost
from .ray_host import Hosted, StoreHost
from .ray_process import RemoteProcess

PLACE_S = 30.0  # until a node has room for the memory of a store node


class RayStore(StoreNode):
    """Runs store node `index` where Ray has room for `memory` bytes; Ray spreads store nodes.

    Its actor is never restarted by Ray. Its end is the end of the store node, whose KV is lost; the
    next one may start on another node.
    """

    def __init__(
        self,
        index: int,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
        memory: int,
        log_dir: Path,
    ) -> None:
        self.name = f"KV pool: store{index}"
        self._settings = settings
        self._environment = environment
        self._memory = memory
        self._log = log_dir / f"mooncake-store{index}.log"
        self._host: Any = None
        self._process: RemoteProcess | None = None
        self._failure: str | None = None  # why the newest start failed

    @property
    @override
    def ended(self) -> bool:
        return self.exit_reason() is not None

    @override
    def exit_reason(self) -> str | None:
        return self._failure or (None if self._process is None else self._process.exit_reason())

    @override
    def log_tail(self) -> str:
        return "" if self._process is None else self._process.log_tail()

    @override
    async def mounted(self) -> bool:
        return self._process is not None and MOUNTED in self._process.log.read_text(
            "utf-8", "replace"
        )

    @override
    async def start(self) -> None:
        self._failure = None
        try:
            await self._start()
        except ConfigError as error:
            self._failure = str(error)
            await self._free()
            raise

    @override
    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._host.stop.remote(), STOP_S)
            await self._process.close()
        await self._free()

    async def _start(self) -> None:
        self._host = (
            ray.remote(StoreHost)
            .options(
                num_cpus=0,
                memory=self._memory,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=CALLS,
                scheduling_strategy="SPREAD",
            )
            .remote()
        )
        try:
            starting = self._host.start.remote(dict(self._settings), dict(self._environment))
            hosted = Hosted(*await asyncio.wait_for(starting, PLACE_S))
        except TimeoutError as error:
            raise ConfigError(
                f"kv_pool.memory: no node of the cluster has room for {self._memory} bytes"
            ) from error
        except RayTaskError as error:
            if isinstance(error.cause, SeerError):
                raise ConfigError(str(error.cause)) from None
            raise ConfigError(f"{self.name}: its actor failed: {error}") from error
        except RayError as error:
            raise ConfigError(f"{self.name}: its actor ended: {first_line(error)}") from error
        self._process = RemoteProcess(self._host, hosted, self._log, why_lost)

    async def _free(self) -> None:
        if self._host is not None:
            with contextlib.suppress(RayError, ValueError):
                await asyncio.to_thread(ray.kill, self._host)
