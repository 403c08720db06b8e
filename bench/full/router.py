"""Arm `router`: `sglang_router` with policy cache_aware in front of the plain servers."""

import asyncio
import contextlib
import copy
import sys
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import msgspec
from typing_extensions import override

from seer_sgl.benchmark.arms import ARMS, BASELINE, GREEDY, Arm
from seer_sgl.benchmark.config import BenchConfig
from seer_sgl.benchmark.fleets import Fleets
from seer_sgl.benchmark.measure import total_work
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine.launch.process import api_key, engine_environment
from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineLoad, EngineProblem, EngineWork
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.processes.child import OwnedProcess, free_port, log_tail

START_S = 120.0
POLL_S = 0.2
ROUTER = Arm(
    name="router",
    label="plain SGLang behind\nits own router",
    description="plain SGLang behind sglang_router, cache_aware, all sent at once",
    policy=BASELINE,
)
_first, *_others = ARMS.values()
MEASURED = (_first, ROUTER, *_others)  # as the committed results list them
KNOWN = (*MEASURED, *GREEDY.values())


def require_router(config: BenchConfig) -> None:
    """Raises ConfigError if the router cannot run in front of these servers."""
    if find_spec("sglang_router") is None:
        raise ConfigError("--router: sglang_router is not installed (make venv)")
    if api_key(config.engines):
        raise ConfigError("--router: sglang_router supports only servers without an API key here")


class RoutedEngine(HttpEngine):
    """All servers behind the router as one engine. Each server reports its own load."""

    def __init__(self, url: str, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        first = fleet.engines[0].info
        infos = [engine.info for engine in fleet.engines]
        combined = msgspec.structs.replace(
            first,
            engine_id=ROUTER.name,
            url=url,
            max_total_num_tokens=sum(info.max_total_num_tokens for info in infos),
            max_running_requests=sum(info.max_running_requests for info in infos),
        )
        super().__init__(combined, session)
        self.servers = fleet.engines

    @override
    async def flush(self) -> None:
        for server in self.servers:
            await server.flush()

    @override
    async def work(self) -> EngineWork | None:
        return await total_work(self.servers)

    @override
    async def load(self) -> EngineLoad:
        loads = [await server.load() for server in self.servers]
        return EngineLoad(
            used_tokens=sum(load.used_tokens for load in loads),
            progress=tuple(load.progress for load in loads),
            running=sum(load.running for load in loads),
            queued=sum(load.queued for load in loads),
            kv_waiting=sum(load.kv_waiting for load in loads),
        )

    @override
    async def problem(self, weight_version: str | None = None) -> EngineProblem | None:
        problems = [await server.problem(weight_version) for server in self.servers]
        return next((problem for problem in problems if problem), None)


class RoutedFleets(Fleets):
    """The servers of the arms, and the plain ones behind a router for arm `router`."""

    def __init__(self, config: BenchConfig, log_dir: Path) -> None:
        super().__init__(config, log_dir)
        self._log = log_dir / "router.log"
        self._behind: Fleet | None = None

    @override
    async def of(self, arm: Arm) -> Fleet:
        plain = await super().of(arm)
        if arm is not ROUTER:
            return plain
        if self._behind is None:
            self._behind = await self.stack.enter_async_context(routed(plain, self._log))
        return self._behind

    @override
    async def close(self) -> None:
        self._behind = None
        await super().close()


@contextlib.asynccontextmanager
async def routed(fleet: Fleet, log: Path) -> AsyncIterator[Fleet]:
    """Starts a router and yields the fleet behind it. Raises EngineStartError."""
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "bench.full.router_process"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *("--policy", "cache_aware", "--log-level", "warn"),
        *("--worker-urls", *(engine.info.url for engine in fleet.engines)),
    ]
    process = await OwnedProcess.start(command, log, engine_environment(None))
    try:
        async with open_session() as session:
            await _ready(process, session, url, len(fleet.engines))
            behind = copy.copy(fleet)
            behind.engines = [RoutedEngine(url, fleet, session)]
            yield behind
    finally:
        await process.stop()


async def _ready(
    process: OwnedProcess, session: aiohttp.ClientSession, url: str, count: int
) -> None:
    """Waits until the router reports all servers as healthy. Raises EngineStartError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.exit_status is not None:
            break
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, KeyError):
            async with session.get(f"{url}/workers") as reply:
                workers = (await reply.json())["workers"]
            if sum(bool(worker.get("is_healthy")) for worker in workers) == count:
                return
        await asyncio.sleep(POLL_S)
    raise EngineStartError(f"sglang_router did not start:\n{log_tail(process.log)}")
