"""Opens the parts of a fleet: its launcher, the driver's link, and the draft hub."""

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from seer_sgl.config import FleetConfig, with_values
from seer_sgl.kvpool.hicache import open_pool
from seer_sgl.link.hub import HubClient, start_hubs
from seer_sgl.link.server import LinkServer, link_urls, open_link, shared_token
from seer_sgl.processes import require_free_port
from seer_sgl.restarts import Restarts
from seer_sgl.timing import Timing

from .launch.exact import require_exact
from .launch.external import ExternalLauncher
from .launch.launcher import Launcher
from .launch.local import LocalLauncher
from .launch.process import gpu_visible, require_model, require_sglang
from .launch.ray_cluster import Cluster, with_key
from .launch.server import ServerPlan

logger = logging.getLogger(__name__)


def on_cluster(config: FleetConfig, cluster: Cluster) -> FleetConfig:
    """Returns the config of engines on the nodes of a cluster.

    On a network, servers and pool ports are open to other machines, the servers with an API key.
    """
    return config._replace(
        engines=with_key(config.engines, cluster, secrets.token_urlsafe(32)),
        kv_pool=with_values(config.kv_pool, {"open_ports": not cluster.loopback}),
    )


@contextlib.asynccontextmanager
async def open_launcher(
    config: FleetConfig,
    log_dir: Path,
    environment: Mapping[str, str],
    cluster: Cluster | None,
    *,
    all_restarts: list[Restarts],
    timing: Timing,
) -> AsyncIterator[Launcher]:
    """Opens the launcher of `engines.launch`; on exit it ends every server it started.

    `environment`: the environment variables of each server that is started here. `all_restarts`:
    as in `kept_alive`, of the KV pool's processes.
    """
    if config.engines.launch == "external":
        yield ExternalLauncher(timing.join_timeout_s)
        return
    if cluster is not None:  # the nodes have SGLang and the model; this machine may have neither
        require_exact(config, "GPU" in cluster.resources)
        machines = cluster.store_machines(config.kv_pool, log_dir)
        async with open_pool(config.kv_pool, log_dir, machines, all_restarts, timing) as pool:
            count, path = config.engines.count, log_dir
            logger.info("starting %d SGLang engine(s) on a Ray cluster, logs in %s", count, path)
            launcher = cluster.launcher(ServerPlan.of(config, pool, environment), log_dir)
            async with contextlib.aclosing(launcher):
                yield launcher
        return
    require_sglang()
    require_model(config.model.path or "")
    require_exact(config, gpu_visible())
    async with open_pool(config.kv_pool, log_dir, None, all_restarts, timing) as pool:
        logger.info("starting %d SGLang engine(s), logs in %s", config.engines.count, log_dir)
        launcher = LocalLauncher(config, log_dir, pool, environment)
        async with contextlib.aclosing(launcher):
            yield launcher


def open_driver_link(
    config: FleetConfig, host: str
) -> contextlib.AbstractAsyncContextManager[LinkServer]:
    if config.engines.link is None:
        # An engine uses one token for driver and hub.
        token = None if config.draft.hub is None else _hub_token()
        return open_link(host, token=token)
    token = shared_token("engines")
    host, _, port = config.engines.link.rpartition(":")
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
        elif draft.scope != "none" and config.engines.launch != "external":
            # Scopes `engine` and `request` need it too, although their engines share no tokens: it
            # passes the end of each group on (and `draft.history`). Without it, an engine keeps
            # the tokens of finished groups until `draft.memory` is full.
            url = await stack.enter_async_context(
                start_hubs(
                    draft,
                    log_dir,
                    token,
                    host,
                    engines=config.engines.count,
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
