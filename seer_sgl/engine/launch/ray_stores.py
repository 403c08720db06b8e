"""A store node of the KV pool on a node of a Ray cluster."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from ray.exceptions import RayError
from typing_extensions import override

from seer_sgl.errors import ConfigError, SeerError, first_line
from seer_sgl.processes.supervisor import Supervised

from .ray_actor import Actor
from .ray_host import StoreHost


class RayStore(Supervised):
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
        self.log = log_dir / f"mooncake-store{index}.log"
        self._actor: Actor | None = None
        self._failure: str | None = None  # why the newest start failed

    @override
    def exit_reason(self) -> str | None:
        process = None if self._actor is None else self._actor.process
        return self._failure or (None if process is None else process.exit_reason())

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

    async def _start(self) -> None:
        """Starts a new actor. Raises ConfigError."""
        try:
            # In a thread, because Ray blocks while its head is away.
            self._actor = await asyncio.to_thread(
                Actor, StoreHost, num_cpus=0, memory=self._memory, scheduling_strategy="SPREAD"
            )
            async with asyncio.timeout(self._place_s):
                await self._actor.start(self.log, dict(self._settings), dict(self._environment))
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
