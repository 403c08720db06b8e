"""SGLang's own router in front of the servers: `sglang_router` with policy cache_aware."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import msgspec
from typing_extensions import override

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine.launch.process import engine_environment
from seer_sgl.engine.session import open_session
from seer_sgl.errors import EngineStartError
from seer_sgl.processes import OwnedProcess, free_port
from seer_sgl.types import EngineLoad

START_S = 120.0
POLL_S = 0.2
ROUTER = "router"  # the engine id of the routed servers


def installed() -> bool:
    """Returns whether sglang_router is installed."""
    return find_spec("sglang_router") is not None


class RoutedEngine(HttpEngine):
    """All servers behind the router as one engine. Each server reports its own load."""

    def __init__(self, url: str, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        first = fleet.engines[0].info
        infos = [engine.info for engine in fleet.engines]
        combined = msgspec.structs.replace(
            first,
            engine_id=ROUTER,
            url=url,
            max_total_num_tokens=sum(info.max_total_num_tokens for info in infos),
            max_running_requests=sum(info.max_running_requests for info in infos),
        )
        super().__init__(combined, session)
        self.servers = fleet.engines

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
    async def problem(self, weight_version: str | None = None) -> str | None:
        problems = [await server.problem(weight_version) for server in self.servers]
        return next((problem for problem in problems if problem), None)


def servers_of(fleet: Fleet) -> Sequence[HttpEngine]:
    """Returns the servers of a fleet; for a routed fleet, the servers behind the router."""
    (first, *_) = fleet.engines
    return first.servers if isinstance(first, RoutedEngine) else fleet.engines


@contextlib.asynccontextmanager
async def routed(fleet: Fleet, log: Path) -> AsyncIterator[Fleet]:
    """Starts a router and yields the fleet behind it. Raises EngineStartError."""
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "seer_sgl.benchmark.router_process"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *("--policy", "cache_aware", "--log-level", "warn"),
        *("--worker-urls", *(engine.info.url for engine in fleet.engines)),
    ]
    process = await OwnedProcess.start(command, log, engine_environment(None))
    try:
        async with open_session() as session:
            await _ready(process, session, url, len(fleet.engines))
            yield fleet.with_engines([RoutedEngine(url, fleet, session)])
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
    raise EngineStartError(f"sglang_router did not start:\n{process.log_tail()}")
