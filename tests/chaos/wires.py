"""The proxies between a driver and its local engines, and the launcher that puts them there."""

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

from typing_extensions import override

from seer_sgl.config import Cores
from seer_sgl.engine.launch import local
from seer_sgl.engine.launch.launcher import EngineStart
from seer_sgl.engine.launch.local import LocalLauncher
from seer_sgl.engine.launch.server import ServerPlan
from seer_sgl.link.contract import HUB_URL, LINK_URL
from seer_sgl.processes.child import OwnedProcess

from .proxy import Proxy, proxy


class Wires:
    """The proxies: one per engine for HTTP, one from all engines to the driver's link, one to the
    draft hub; and the newest server of each engine."""

    def __init__(self, stack: contextlib.AsyncExitStack, link: Proxy, hub: Proxy) -> None:
        self._stack = stack
        self.link = link
        self.hub = hub
        self.http: dict[str, Proxy] = {}  # by engine id
        self.servers: dict[str, OwnedProcess] = {}  # by engine id

    def of(self, target: str) -> Proxy:
        """Returns the proxy of a fault's target (plan.py)."""
        return {"link": self.link, "hub link": self.hub}.get(target) or self.http[target]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of engines whose links lead through the proxies."""
        through = dict(variables)
        for name, wire in ((LINK_URL, self.link), (HUB_URL, self.hub)):
            if name not in variables:
                continue  # without drafts there is no hub
            url = urlsplit(variables[name])
            assert url.hostname is not None and url.port is not None
            wire.target = url.hostname, url.port
            through[name] = url._replace(netloc=wire.address).geturl()
        return through

    async def started(self, start: EngineStart) -> EngineStart:
        """Returns the start of an engine whose URL leads through its proxy."""
        engine_id, port = start.engine_id, urlsplit(start.url).port
        assert isinstance(start.process, OwnedProcess) and port is not None
        self.servers[engine_id] = start.process
        if engine_id not in self.http:
            self.http[engine_id] = await self._stack.enter_async_context(proxy())
        self.http[engine_id].target = "127.0.0.1", port
        return start._replace(url=f"http://{self.http[engine_id].address}")


class ProxiedLauncher(LocalLauncher):
    """A launcher of local engines behind proxies."""

    def __init__(self, wires: Wires, plan: ServerPlan, log_dir: Path, cores: Cores) -> None:
        environment = wires.environment(plan.environment)
        super().__init__(plan._replace(environment=environment), log_dir, cores)
        self._wires = wires

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        return await self._wires.started(await super().start(engine_id, url))

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        return await self._wires.started(await super().restart(engine_id, kv_tokens))


@contextlib.asynccontextmanager
async def wired() -> AsyncIterator[Wires]:
    """Yields proxies; local fleets that are opened in the block use them."""
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(proxy())
        hub = await stack.enter_async_context(proxy())
        wires = Wires(stack, link, hub)
        launcher = functools.partial(ProxiedLauncher, wires)
        stack.enter_context(patch.object(local, "LocalLauncher", launcher))
        yield wires
