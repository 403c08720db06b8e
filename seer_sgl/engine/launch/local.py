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

from seer_sgl.config import FlagValue, FleetConfig
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.kvpool.hicache import Pool
from seer_sgl.link import contract
from seer_sgl.processes import OwnedProcess, free_port, require_free_port

from . import draft_flags, exact
from .cores import engine_cores, machine_cores
from .launcher import EngineStart, Launcher
from .process import api_key, cpu_flags, gpu_visible, model_flags, open_ports, start_server

logger = logging.getLogger(__name__)


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
        self._pool = pool
        self._environment = {
            **pool.environment(),
            **draft_flags.environment(config.draft),
            **environment,
            **config.engines.environment,
        }
        self._slots: dict[str, int] = {}  # by engine id
        self._ports: dict[str, int] = {}  # likewise
        self._starts: Counter[str] = Counter()  # likewise
        self._processes: dict[str, OwnedProcess] = {}
        flags = config.engines.flags()
        address = str(flags["dist-init-addr"]) if "dist-init-addr" in flags else None
        surroundings = {**os.environ, **config.engines.environment}
        for line in open_ports(_ranks(flags), address, surroundings):
            logger.warning("open ports: %s", line)

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        engines = self._config.engines
        if url is not None:
            raise ConfigError(f"engines.launch: local cannot join a running engine ({url})")
        slot = next(i for i in itertools.count() if i not in self._slots.values())
        port = free_port() if engines.base_port is None else engines.base_port + slot
        if engines.base_port is not None:
            require_free_port(port, "engines.base_port")
        self._slots[engine_id], self._ports[engine_id] = slot, port
        return await self._started(engine_id)

    @override
    async def start_again(self, engine_id: str, kv_tokens: int) -> EngineStart:
        process = self._processes.get(engine_id)
        if process is not None:
            await process.stop()  # what it has left
            self._processes.pop(engine_id, None)
        if engine_id not in self._slots:
            raise EngineStartError(f"engine {engine_id} was stopped")
        # SGLang measures its free memory; the schedule relies on the capacity of before.
        return await self._started(engine_id, {"max-total-tokens": kv_tokens})

    async def _started(
        self, engine_id: str, defaults: Mapping[str, FlagValue] | None = None
    ) -> EngineStart:
        """Starts a server in the engine's slot. `defaults`: flags below all others."""
        engines, slot, port = self._config.engines, self._slots[engine_id], self._ports[engine_id]
        number, self._starts[engine_id] = self._starts[engine_id], self._starts[engine_id] + 1
        instance = uuid.uuid4().hex
        process = await start_server(
            dict(defaults or {})
            | self._pool.flags(gpu_visible())
            | draft_flags.flags(self._config.draft)
            | exact.flags(self._config, gpu_visible())
            | slot_flags(self._config, slot, port),
            # The log of a server that has ended explains its end: it stays.
            self._log_dir / (f"{engine_id}.{number}.log" if number else f"{engine_id}.log"),
            engine_cores(engines.cores, slot, engines.count, machine_cores(), gpu_visible()),
            {**self._environment, contract.INSTANCE: instance},
            api_key(engines),
        )
        if engine_id not in self._slots:  # `stop` or `aclose` was called meanwhile
            await process.stop()
            raise EngineStartError(f"engine {engine_id} was stopped while it was starting")
        self._processes[engine_id] = process
        logger.debug("engine %s: process %d, log %s", engine_id, process.pid, process.log)
        return EngineStart(
            engine_id, f"http://127.0.0.1:{port}", engines.start_timeout_s, process, instance
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


def slot_flags(config: FleetConfig, slot: int, port: int) -> dict[str, FlagValue]:
    """Returns the flags of the server in a slot. The user's flags override our defaults."""
    own = config.engines.flags()
    # The port for ranks that SGLang itself picks may be taken by an outgoing connection first.
    flags = model_flags(config.model) | {"port": port, "nccl-port": free_port()}
    if gpu_visible():
        flags["base-gpu-id"] = slot * _ranks(own)
    else:
        flags |= cpu_flags()
    return flags | own


def _ranks(own: Mapping[str, FlagValue]) -> int:
    """Returns the number of ranks of one server; each has its own GPU."""
    return int(str(own.get("tp-size", own.get("tensor-parallel-size", own.get("tp", 1)))))
