"""SGLang servers as child processes on this machine."""

import asyncio
import itertools
import logging
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from seer_sgl.config import FleetConfig
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.kvpool.hicache import Pool
from seer_sgl.processes import OwnedProcess, free_port

from .cores import engine_cores, machine_cores
from .launcher import EngineStart, Launcher
from .process import gpu_visible, open_ports
from .server import Place, ServerPlan, ranks, start_planned

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"


class LocalLauncher(Launcher):
    """Starts servers on loopback. `environment`: variables of each server, besides the config's.

    Each engine takes the lowest free slot, which determines its GPUs, cores and port. So an engine
    started later reuses the place of a stopped one.
    """

    def __init__(
        self, config: FleetConfig, log_dir: Path, pool: Pool, environment: Mapping[str, str]
    ) -> None:
        self._config = config
        self._log_dir = log_dir
        self._plan = ServerPlan.of(config, pool, environment)
        self._slots: dict[str, int] = {}  # by engine id
        self._ports: dict[str, int] = {}  # by engine id
        self._starts: Counter[str] = Counter()  # by engine id
        self._processes: dict[str, OwnedProcess] = {}
        flags = config.engines.flags()
        address = str(flags["dist-init-addr"]) if "dist-init-addr" in flags else None
        surroundings = {**os.environ, **config.engines.environment}
        for line in open_ports(ranks(flags), address, surroundings):
            logger.warning("open ports: %s", line)

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if url is not None:
            raise ConfigError(f"engines.launch: local cannot join a running engine ({url})")
        slot = next(i for i in itertools.count() if i not in self._slots.values())
        self._slots[engine_id], self._ports[engine_id] = slot, free_port()
        return await self._started(engine_id)

    @override
    async def start_again(self, engine_id: str, kv_tokens: int) -> EngineStart:
        process = self._processes.get(engine_id)
        if process is not None:
            await process.stop()  # what it has left
            self._processes.pop(engine_id, None)
        if engine_id not in self._slots:
            raise EngineStartError(f"engine {engine_id} was stopped")
        return await self._started(engine_id, kv_tokens)

    async def _started(self, engine_id: str, kv_tokens: int | None = None) -> EngineStart:
        """Starts a server in the engine's slot. `kv_tokens`: its KV capacity, if it is known."""
        engines, slot, port = self._config.engines, self._slots[engine_id], self._ports[engine_id]
        number, self._starts[engine_id] = self._starts[engine_id], self._starts[engine_id] + 1
        instance = uuid.uuid4().hex
        # The log of a server that has ended explains its end: it stays.
        log = self._log_dir / (f"{engine_id}.{number}.log" if number else f"{engine_id}.log")
        base_gpu = slot * ranks(engines.flags())
        cores = engine_cores(engines.cores, slot, engines.count, machine_cores(), gpu_visible())
        place = Place(HOST, port, base_gpu, cores)
        process = await start_planned(self._plan, place, instance, log, kv_tokens)
        if engine_id not in self._slots:  # `stop` or `aclose` was called meanwhile
            await process.stop()
            raise EngineStartError(f"engine {engine_id} was stopped while it was starting")
        self._processes[engine_id] = process
        logger.debug("engine %s: process %d, log %s", engine_id, process.pid, process.log)
        return EngineStart(
            engine_id, f"http://{HOST}:{port}", engines.start_timeout_s, process, instance
        )

    @override
    async def stop(self, engine_id: str) -> None:
        process = self._processes.get(engine_id)
        if process is not None:
            await process.stop()
            self._processes.pop(engine_id, None)
        self._slots.pop(engine_id, None)
        self._ports.pop(engine_id, None)

    @override
    async def aclose(self) -> None:
        await asyncio.gather(*map(self.stop, list(self._slots)))
