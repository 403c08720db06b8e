"""Opens the parts of a fleet: its launcher, the driver's link, and the draft hub."""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from seer_sgl.config import (
    ExternalEngines,
    FleetConfig,
    LocalEngines,
    RayEngines,
    StartedEngines,
)
from seer_sgl.kvpool.hicache import open_pool
from seer_sgl.link.hub import HubClient, start_hubs
from seer_sgl.link.server import LinkServer, link_urls, open_link, shared_token
from seer_sgl.processes.child import LOOPBACK, hold_ports, require_free_port
from seer_sgl.processes.restarts import Restarts
from seer_sgl.timing import Timing

from .launch.external import ExternalLauncher
from .launch.launcher import Launcher, Site
from .launch.local import this_machine
from .launch.rank_count import copies
from .launch.ray_cluster import open_cluster
from .launch.server import ServerPlan

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_site(config: FleetConfig, timing: Timing) -> AsyncIterator[Site]:
    """Opens the place where the engines of a config run. Raises ConfigError.

    From then on this process holds its ports: other fleets may start on this machine.
    """
    hold_ports()
    match config.engines:
        case LocalEngines(cores=cores):
            yield this_machine(config, cores)
        case ExternalEngines():
            yield Site(config, LOOPBACK, launcher=None)
        case RayEngines() as engines:
            async with open_cluster(config, engines, timing) as site:
                yield site


@contextlib.asynccontextmanager
async def open_launcher(
    site: Site,
    log_dir: Path,
    environment: Mapping[str, str],
    *,
    all_restarts: list[Restarts],
    timing: Timing,
) -> AsyncIterator[Launcher]:
    """Opens the launcher of a site; on exit it ends every server it started.

    `environment`: the environment variables of each server. `all_restarts`: as in `supervised`, of
    the KV pool's processes.
    """
    config = site.config
    if site.launcher is None:
        yield ExternalLauncher(timing.join_timeout_s)
        return
    machines = None if site.machines is None else site.machines(log_dir)
    async with open_pool(config.kv_pool, log_dir, machines, all_restarts, timing) as pool:
        plan = ServerPlan.of(config, pool, environment)
        logger.info("starting %d SGLang engine(s), logs in %s", plan.engines.count, log_dir)
        async with contextlib.aclosing(site.launcher(plan, log_dir)) as launcher:
            yield launcher


def open_driver_link(
    config: FleetConfig, host: str
) -> contextlib.AbstractAsyncContextManager[LinkServer]:
    engines = config.engines
    if not isinstance(engines, ExternalEngines) or engines.link is None:
        # An engine uses one token for driver and hub.
        token = None if config.draft.hub is None else _hub_token()
        return open_link(host, token=token)
    token = shared_token("engines")
    host, _, port = engines.link.rpartition(":")
    require_free_port(int(port), "engines.link", host)
    return open_link(host, int(port), token)


@contextlib.asynccontextmanager
async def open_hub(
    config: FleetConfig,
    log_dir: Path,
    token: str,
    host: str,
    *,
    all_restarts: list[Restarts],
    timing: Timing,
) -> AsyncIterator[HubClient | None]:
    """Opens the client of the draft hub, and starts the hub for engines that draft and are started.

    Yields None without a hub. `token`: the link's token, which a hub started here shares.
    """
    draft = config.draft
    async with contextlib.AsyncExitStack() as stack:
        if draft.hub is not None:
            url, token = link_urls(draft.hub), _hub_token()
        elif draft.scope != "none" and isinstance(config.engines, StartedEngines):
            # Scopes `engine` and `request` need it too, although their engines share no tokens: it
            # passes the end of each group on (and `draft.history`). Without it, an engine keeps
            # the tokens of finished groups until `draft.memory` is full.
            url = await stack.enter_async_context(
                start_hubs(
                    draft,
                    log_dir,
                    token,
                    host,
                    engines=config.engines.count * copies(config.engines.flags()),
                    all_restarts=all_restarts,
                    timing=timing,
                )
            )
        else:
            yield None
            return
        hub = HubClient(url, token, timing)
        stack.callback(hub.close)
        yield hub


def _hub_token() -> str:
    return shared_token("draft hub", "draft.hub")
