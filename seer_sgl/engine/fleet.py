"""The engines of a rollout: a fleet that can grow and shrink during the rollout."""

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from seer_sgl.config import Engines, ExternalEngines, FleetConfig, StartedEngines
from seer_sgl.engine_types import EngineInfo, rank_id
from seer_sgl.errors import ConfigError, EngineDelayed, EngineStartError
from seer_sgl.kvpool.backend import resolved
from seer_sgl.link.contract import HUB_URL, LINK_TOKEN, LINK_URL
from seer_sgl.link.hub import HubClient
from seer_sgl.link.server import LinkServer
from seer_sgl.processes.restarts import Restarts
from seer_sgl.timing import DEFAULT, Timing

from .client import HttpEngine
from .launch.launcher import EngineStart, Launcher
from .launch.process import api_key
from .launch.ready import POLL_S, all_done, all_ready
from .opening import open_driver_link, open_hub, open_launcher, open_site
from .session import open_session
from .supervisor import EngineSupervisor

logger = logging.getLogger(__name__)


class Fleet:
    """The running engines, the link to their plugins, and the draft hub if they draft.

    The launcher, link and session stay open until the block of `open_fleet` ends.
    """

    def __init__(
        self,
        config: Engines,
        launcher: Launcher,
        *,
        link: LinkServer,
        drafts: HubClient | None,
        session: aiohttp.ClientSession,
        restarts: Sequence[Restarts],
        timing: Timing = DEFAULT,
    ) -> None:
        self.engines: list[HttpEngine] = []
        self.restarts = restarts  # of the processes of the KV pool and the draft hub
        self.link = link
        self.drafts = drafts
        self._config = config
        self._launcher = launcher
        self._session = session
        self._timing = timing
        self._supervisor = EngineSupervisor(launcher, session, timing)
        self._numbers = itertools.count()  # the id of a server is never reused

    async def start_engine(self) -> list[HttpEngine]:
        """Starts one more server here, and returns its engines once they are up and linked.

        It has the next id. Raises ConfigError or EngineStartError; then no process is left.
        """
        return await self._add([None])

    async def join(self, url: str) -> list[HttpEngine]:
        """Returns the engines of one more server, which already runs at `url`.

        Raises like `start_engine`.
        """
        return await self._add([url])

    async def start_all(self) -> None:
        """Starts or joins the engines of the config concurrently. Raises like `start_engine`.

        On a cluster one engine is enough: those that have no room there are started later.
        """
        config = self._config
        urls = [None] * config.count if isinstance(config, StartedEngines) else config.urls
        await self._add(urls)

    def of_server(self, engine_id: str) -> list[HttpEngine]:
        """Returns the engines of an engine's server. Raises ConfigError if it has left."""
        for engine in self.engines:
            if engine.info.engine_id == engine_id:
                server_id = engine.info.server_id
                return [other for other in self.engines if other.info.server_id == server_id]
        raise ConfigError(f"engine {engine_id} is not in the fleet")

    async def stop_engine(self, engine_id: str) -> None:
        """Removes the engines of an engine's server, and ends its processes if they were started
        here.

        Requests still running on it fail; the driver moves them to other engines.
        Raises ConfigError if there is no such engine.
        """
        leaving = self.of_server(engine_id)
        self.engines[:] = [engine for engine in self.engines if engine not in leaving]
        server_id = leaving[0].info.server_id
        await self._supervisor.remove(server_id)
        await self._launcher.stop(server_id)
        logger.info("engine %s has left the fleet", server_id)

    async def keep(self) -> None:
        """Restarts local engines that have died, until cancelled (supervisor.py)."""
        await self._supervisor.run()

    async def _add(self, urls: Sequence[str | None]) -> list[HttpEngine]:
        """Starts or joins servers concurrently: all of them or none. A url of None: starts one.

        Servers that are delayed are started later, provided that another one is ready now.
        """
        ids = [f"e{next(self._numbers)}" for _ in urls]
        try:
            placed = await all_done(map(self._placed, ids, urls))
            starts = [start for start in placed if isinstance(start, EngineStart)]
            infos = await all_ready(starts, self._session, self._timing)
            ready = [of_server for of_server in infos if not isinstance(of_server, EngineDelayed)]
            delayed = [delay for delay in (*placed, *infos) if isinstance(delay, EngineDelayed)]
            if delayed and not ready:
                raise delayed[0]
            engines = {
                start.engine_id: await self._linked(start, of_server)
                for start, of_server in zip(starts, infos, strict=True)
                if not isinstance(of_server, EngineDelayed)
            }
            engines |= {delay.engine_id: self._late(delay, ready[0]) for delay in delayed}
        except BaseException:
            await asyncio.gather(*map(self._supervisor.remove, ids))
            await asyncio.gather(*map(self._launcher.stop, ids))
            raise
        added = [engine for server_id in ids for engine in engines[server_id]]
        self.engines += added
        return added

    async def _placed(self, engine_id: str, url: str | None) -> EngineStart | EngineDelayed:
        try:
            return await self._launcher.start(engine_id, url)
        except EngineDelayed as delayed:
            return delayed

    def _late(self, delayed: EngineDelayed, like: Sequence[EngineInfo]) -> list[HttpEngine]:
        """Returns engines that have no server yet and are described like those of another one."""
        logger.warning("engine %s is started later: %s", delayed.engine_id, delayed.why)
        infos = [
            msgspec.structs.replace(
                info,
                engine_id=rank_id(delayed.engine_id, info.dp_rank, info.dp_size),
                url="",
                instance=None,
            )
            for info in like
        ]
        self._supervisor.add_late(infos[0], delayed.why)
        return self._engines(infos)

    async def _linked(self, start: EngineStart, infos: Sequence[EngineInfo]) -> list[HttpEngine]:
        """Returns a server's engines once their plugins are linked; without a KV pool if they
        cannot link.

        Only the plugin reports when KV has reached the pool. Raises EngineStartError.
        """
        if infos[0].pool is not None:
            if isinstance(self._config, ExternalEngines) and self._config.link is None:
                infos = [msgspec.structs.replace(info, pool=None) for info in infos]
            else:
                await all_done(self._await_link(start, info) for info in infos)
        self._supervisor.add(start, infos[0])
        return self._engines(infos)

    def _engines(self, infos: Sequence[EngineInfo]) -> list[HttpEngine]:
        server = functools.partial(self._supervisor.server, infos[0].server_id)
        end_server = functools.partial(self._supervisor.end, infos[0].server_id)
        loading = asyncio.Lock()
        return [
            HttpEngine(info, self._session, server, end_server, self._timing, loading=loading)
            for info in infos
        ]

    async def _await_link(self, start: EngineStart, info: EngineInfo) -> None:
        """Waits for an engine's plugin. Raises EngineStartError, at once if its server ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timing.link_timeout_s
        while (ended := start.exit_reason()) is None and loop.time() < deadline:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self.link.until_linked(info.instance or "")
                    return
        if ended is not None:
            raise EngineStartError(f"engine {start.engine_id}: {ended}")
        raise EngineStartError(
            f"engine {info.engine_id} ({info.url}) does not connect to the driver's link, "
            f"{self.link.url}; it needs {LINK_URL} and {LINK_TOKEN} in its environment "
            "(`seer-sgl engine --fleet` sets both)"
        )


@contextlib.asynccontextmanager
async def open_fleet(
    config: FleetConfig, log_dir: Path, timing: Timing = DEFAULT
) -> AsyncIterator[Fleet]:
    """Starts or joins the engines of `config`; on exit it stops the engines it started.

    It logs the steps of the start-up. Raises EngineStartError, HubError, PoolError or
    ConfigError; then no process is left running.
    """
    config = config._replace(kv_pool=resolved(config.kv_pool))
    restarts: list[Restarts] = []
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(open_site(config, timing))
        config, host = site.config, site.address
        link = await stack.enter_async_context(open_driver_link(config, host))
        hub = await stack.enter_async_context(
            open_hub(config, log_dir, link.token, host, all_restarts=restarts, timing=timing)
        )
        session = await stack.enter_async_context(open_session(api_key(config.engines)))
        environment = {LINK_URL: link.url, LINK_TOKEN: link.token}
        if hub is not None:
            environment[HUB_URL] = hub.url
        opening = open_launcher(site, log_dir, environment, all_restarts=restarts, timing=timing)
        launcher = await stack.enter_async_context(opening)
        fleet = Fleet(
            config.engines,
            launcher,
            link=link,
            drafts=hub,
            session=session,
            restarts=restarts,
            timing=timing,
        )
        await fleet.start_all()
        keeping = asyncio.create_task(fleet.keep())
        try:
            yield fleet
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
