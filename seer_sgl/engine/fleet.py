"""The engines of a rollout: a fleet that can grow and shrink during the rollout."""

import asyncio
import contextlib
import copy
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from seer_sgl.config import EnginesConfig, FleetConfig
from seer_sgl.errors import ConfigError, EngineStartError
from seer_sgl.kvpool.backend import resolved
from seer_sgl.kvpool.hicache import open_pool
from seer_sgl.link.contract import HUB_URL, LINK_TOKEN, LINK_URL
from seer_sgl.link.hub import DraftSink, HubClient, start_hub
from seer_sgl.link.server import LinkServer, link_url, open_link, shared_token
from seer_sgl.processes import require_free_port
from seer_sgl.types import EngineInfo

from .client import HttpEngine
from .keeper import Keeper
from .launch.exact import require_exact
from .launch.external import ExternalLauncher
from .launch.launcher import EngineStart, Launcher
from .launch.local import LocalLauncher
from .launch.process import api_key, gpu_visible, require_model, require_sglang
from .launch.ready import all_ready
from .session import open_session

logger = logging.getLogger(__name__)
LINK_TIMEOUT_S = 15.0  # an engine's plugin tries twice a second


class Fleet:
    """The running engines, the link to their plugins, and the draft hub if they draft.

    The launcher, link and session stay open until the block of `open_fleet` ends.
    """

    def __init__(
        self,
        config: EnginesConfig,
        launcher: Launcher,
        *,
        link: LinkServer,
        drafts: DraftSink | None,
        session: aiohttp.ClientSession,
    ) -> None:
        self.engines: list[HttpEngine] = []
        self.link = link
        self.drafts = drafts
        self._config = config
        self._launcher = launcher
        self._session = session
        self._keeper = Keeper(launcher, session)
        self._numbers = itertools.count()  # an engine id is never reused

    async def start_engine(self) -> HttpEngine:
        """Starts one more engine here, and returns it once it is up and linked.

        It has the next engine id. Raises ConfigError or EngineStartError; then no process is left.
        """
        (engine,) = await self._add([None])
        return engine

    async def join(self, url: str) -> HttpEngine:
        """Returns one more engine, which already runs at `url`. Raises like `start_engine`."""
        (engine,) = await self._add([url])
        return engine

    async def start_all(self) -> None:
        """Starts or joins the engines of the config concurrently. Raises like `start_engine`."""
        config = self._config
        await self._add(config.urls if config.launch == "external" else [None] * config.count)

    async def stop_engine(self, engine_id: str) -> None:
        """Removes an engine, and ends its processes if they were started here.

        Requests still running on it fail; the driver moves them to other engines.
        Raises ConfigError if there is no such engine.
        """
        for engine in self.engines:
            if engine.info.engine_id == engine_id:
                self.engines.remove(engine)
                await self._keeper.remove(engine_id)
                await self._launcher.stop(engine_id)
                logger.info("engine %s has left the fleet", engine_id)
                return
        raise ConfigError(f"the fleet has no engine {engine_id}")

    async def keep(self) -> None:
        """Starts local engines again that have ended, until cancelled (keeper.py)."""
        await self._keeper.run()

    def with_engines(self, engines: Sequence[HttpEngine]) -> "Fleet":
        """Returns a fleet with other engines on the same link.

        Later starts and stops in one fleet do not show in the other.
        """
        other = copy.copy(self)
        other.engines = list(engines)
        return other

    async def _add(self, urls: Sequence[str | None]) -> list[HttpEngine]:
        """Starts or joins engines concurrently: all of them or none. A url of None: starts one."""
        ids = [f"e{next(self._numbers)}" for _ in urls]
        try:
            starts = [
                await self._launcher.start(engine_id, url)
                for engine_id, url in zip(ids, urls, strict=True)
            ]
            infos = await all_ready(starts, self._session)
            engines = [
                await self._linked(start, info) for start, info in zip(starts, infos, strict=True)
            ]
        except BaseException:
            await asyncio.gather(*map(self._keeper.remove, ids))
            await asyncio.gather(*map(self._launcher.stop, ids))
            raise
        self.engines += engines
        return engines

    async def _linked(self, start: EngineStart, info: EngineInfo) -> HttpEngine:
        """Returns the engine once its plugin is linked; without a KV pool if it cannot link.

        Only the plugin reports when KV has reached the pool. Raises EngineStartError.
        """
        if info.pool is not None:
            if self._config.launch == "external" and self._config.link is None:
                info = msgspec.structs.replace(info, pool=None)
            else:
                await self._await_link(info)
        self._keeper.add(start, info)
        server = functools.partial(self._keeper.server, start.engine_id)
        end_server = functools.partial(self._keeper.end, start.engine_id)
        return HttpEngine(info, self._session, server, end_server)

    async def _await_link(self, info: EngineInfo) -> None:
        try:
            async with asyncio.timeout(LINK_TIMEOUT_S):
                await self.link.until_linked(info.instance or "")
        except TimeoutError as error:
            raise EngineStartError(
                f"engine {info.engine_id} ({info.url}) does not connect to the driver's link, "
                f"{self.link.url}; it needs {LINK_URL} and {LINK_TOKEN} in its environment "
                "(`seer-sgl engine --fleet` sets both)"
            ) from error


@contextlib.asynccontextmanager
async def open_fleet(config: FleetConfig, log_dir: Path) -> AsyncIterator[Fleet]:
    """Starts or joins the engines of `config`; on exit it stops the engines it started.

    It logs the steps of the start-up. Raises EngineStartError, HubError, PoolError or
    ConfigError; then no process is left running.
    """
    config = config._replace(kv_pool=resolved(config.kv_pool))
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(_open_link(config))
        hub = await stack.enter_async_context(_open_hub(config, log_dir, link.token))
        session = await stack.enter_async_context(open_session(api_key(config.engines)))
        environment = {LINK_URL: link.url, LINK_TOKEN: link.token}
        if hub is not None:
            environment[HUB_URL] = hub.url
        opening = _open_launcher(config, log_dir, environment)
        launcher = await stack.enter_async_context(opening)
        fleet = Fleet(config.engines, launcher, link=link, drafts=hub, session=session)
        await fleet.start_all()
        keeping = asyncio.create_task(fleet.keep())
        try:
            yield fleet
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})


@contextlib.asynccontextmanager
async def _open_launcher(
    config: FleetConfig, log_dir: Path, environment: Mapping[str, str]
) -> AsyncIterator[Launcher]:
    """Opens the launcher of `engines.launch`; on exit it ends every server it started.

    `environment`: the environment variables of each server that is started here.
    """
    if config.engines.launch == "external":
        yield ExternalLauncher()
        return
    require_sglang()
    require_model(config.model.path or "")
    require_exact(config, gpu_visible())
    async with open_pool(config.kv_pool, log_dir) as pool:
        logger.info("starting %d SGLang engine(s), logs in %s", config.engines.count, log_dir)
        launcher = LocalLauncher(config, log_dir, pool, environment)
        async with contextlib.aclosing(launcher):
            yield launcher


def _open_link(config: FleetConfig) -> contextlib.AbstractAsyncContextManager[LinkServer]:
    if config.engines.link is None:
        # An engine uses one token for driver and hub.
        token = None if config.draft.hub is None else _hub_token()
        return open_link(token=token)
    token = shared_token("engines")
    host, _, port = config.engines.link.rpartition(":")
    require_free_port(int(port), "engines.link", host)
    return open_link(host, int(port), token)


@contextlib.asynccontextmanager
async def _open_hub(
    config: FleetConfig, log_dir: Path, token: str
) -> AsyncIterator[HubClient | None]:
    """Opens the client of the draft hub, and starts the hub for local engines that draft.

    Yields None without a hub. `token`: the link's token, which a hub started here shares.
    """
    draft = config.draft
    async with contextlib.AsyncExitStack() as stack:
        if draft.hub is not None:
            url, token = link_url(draft.hub), _hub_token()
        elif draft.scope != "none" and config.engines.launch == "local":
            # Scopes `engine` and `request` need it too, although their engines share no tokens: it
            # passes the end of each group on (and `draft.history`). Without it, an engine keeps
            # the tokens of finished groups until `draft.memory` is full.
            url = await stack.enter_async_context(start_hub(draft, log_dir, token))
        else:
            yield None
            return
        hub = HubClient(url, token)
        stack.callback(hub.close)
        yield hub


def _hub_token() -> str:
    return shared_token("draft hub", "draft.hub")
