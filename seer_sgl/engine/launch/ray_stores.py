"""A store node of the KV pool on a node of a Ray cluster."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from ray.exceptions import RayError
from typing_extensions import override

from seer_sgl.errors import ConfigError, SeerError
from seer_sgl.kvpool.mooncake import StoreNode
from seer_sgl.kvpool.node import MOUNTED

from .ray_actor import Actor, first_line
from .ray_host import StoreHost
from .ray_process import RemoteProcess


class RayStore(StoreNode):
    """Runs store node `index` where Ray has room for `memory` bytes within `place_s`.

    Its actor is never restarted by Ray. Its end is the end of the store node, whose KV is lost; the
    next one may start on another node.
    """

    def __init__(
        self,
        index: int,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
        *,
        memory: int,
        log_dir: Path,
        place_s: float,
    ) -> None:
        self.name = f"KV pool: store{index}"
        self._settings = settings
        self._environment = environment
        self._memory = memory
        self._place_s = place_s
        self._log = log_dir / f"mooncake-store{index}.log"
        self._actor: Actor | None = None
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
        process = self._process
        return process is not None and MOUNTED in process.log.read_text(errors="replace")

    @override
    async def start(self) -> None:
        self._failure = None
        try:
            await self._start()
        except ConfigError as error:
            self._failure = str(error)
            await self.stop()
            raise

    @override
    async def stop(self) -> None:
        if self._actor is not None:
            await self._actor.end()

    @property
    def _process(self) -> RemoteProcess | None:
        return None if self._actor is None else self._actor.process

    async def _start(self) -> None:
        """Starts a new actor. Raises ConfigError."""
        self._actor = Actor(
            StoreHost, num_cpus=0, memory=self._memory, scheduling_strategy="SPREAD"
        )
        starting = self._actor.start(self._log, dict(self._settings), dict(self._environment))
        try:
            await asyncio.wait_for(starting, self._place_s)
        except TimeoutError as error:
            raise ConfigError(
                f"kv_pool.memory: no node of the cluster has room for {self._memory} bytes"
            ) from error
        except ConfigError:
            raise
        except SeerError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        except RayError as error:
            raise ConfigError(f"{self.name}: its actor ended: {first_line(error)}") from error
