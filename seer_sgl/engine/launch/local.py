"""SGLang servers as child processes on this machine."""

import asyncio
import functools
import itertools
import logging
import os
import uuid
from collections import Counter
from pathlib import Path

from typing_extensions import override

from seer_sgl.config import Cores, FleetConfig
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.processes.child import LOOPBACK, OwnedProcess, free_port

from .cores import engine_cores, machine_cores
from .exact import require_exact
from .launcher import EngineStart, Launcher, Site
from .process import gpu_visible, open_ports, require_model, require_sglang
from .rank_count import copies, ranks
from .server import Place, ServerPlan, start_planned

logger = logging.getLogger(__name__)


def this_machine(config: FleetConfig, cores: Cores) -> Site:
    """Returns the site of engines on this machine. Raises ConfigError if they cannot run here."""
    require_sglang()
    require_model(config.model.path or "")
    require_exact(config, gpu_visible())
    return Site(config, LOOPBACK, functools.partial(LocalLauncher, cores=cores))


class LocalLauncher(Launcher):
    """Starts servers on loopback.

    Each engine takes the lowest free slot, which determines its GPUs, cores and port. So an engine
    started later reuses the place of a stopped one.
    """

    def __init__(self, plan: ServerPlan, log_dir: Path, cores: Cores = None) -> None:
        self._plan = plan
        self._log_dir = log_dir
        self._cores = cores
        self._slots: dict[str, int] = {}  # by engine id
        self._ports: dict[str, int] = {}  # by engine id
        self._starts: Counter[str] = Counter()  # by engine id
        self._processes: dict[str, OwnedProcess] = {}
        flags = plan.engines.flags()
        address = str(flags["dist-init-addr"]) if "dist-init-addr" in flags else None
        surroundings = {**os.environ, **plan.engines.environment}
        for line in open_ports(ranks(flags) // copies(flags), address, surroundings):
            logger.warning("open ports: %s", line)

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if url is not None:
            raise ConfigError(f"engines.launch: local cannot join a running engine ({url})")
        slot = next(i for i in itertools.count() if i not in self._slots.values())
        self._slots[engine_id], self._ports[engine_id] = slot, free_port()
        return await self._started(engine_id)

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        process = self._processes.get(engine_id)
        if process is not None:
            await process.stop()  # what it has left
            self._processes.pop(engine_id, None)
        if engine_id not in self._slots:
            raise EngineStartError(f"engine {engine_id} was stopped")
        return await self._started(engine_id, kv_tokens)

    async def _started(self, engine_id: str, kv_tokens: int | None = None) -> EngineStart:
        """Starts a server in the engine's slot. `kv_tokens`: its KV capacity, if it is known."""
        engines, slot, port = self._plan.engines, self._slots[engine_id], self._ports[engine_id]
        number, self._starts[engine_id] = self._starts[engine_id], self._starts[engine_id] + 1
        instance = uuid.uuid4().hex
        # The log of a server that has ended explains its end: it stays.
        log = self._log_dir / (f"{engine_id}.{number}.log" if number else f"{engine_id}.log")
        base_gpu = slot * ranks(engines.flags())
        cores = engine_cores(self._cores, slot, engines.count, machine_cores(), gpu_visible())
        place = Place(LOOPBACK, port, base_gpu, cores)
        process = await start_planned(self._plan, place, instance, log, kv_tokens)
        if engine_id not in self._slots:  # `stop` or `aclose` was called meanwhile
            await process.stop()
            raise EngineStartError(f"engine {engine_id} was stopped while it was starting")
        self._processes[engine_id] = process
        logger.debug("engine %s: process %d, log %s", engine_id, process.pid, process.log)
        return EngineStart(
            engine_id,
            f"http://{LOOPBACK}:{port}",
            engines.start_limit_s(gpu_visible()),
            process,
            instance,
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
