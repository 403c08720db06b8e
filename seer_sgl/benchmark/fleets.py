"""The servers of the arms: one kind per set of techniques, shared by the arms of that kind."""

import contextlib
import logging
from pathlib import Path

from seer_sgl.config import Config, ExternalEngines, LocalEngines
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.engine.launch.exact import require_exact
from seer_sgl.engine.launch.process import gpu_visible
from seer_sgl.errors import ConfigError

from .arms import EVERY, Arm
from .config import BenchConfig
from .derive import servers_config

logger = logging.getLogger(__name__)


class Fleets:
    """Opens the servers of a kind when an arm needs them, and keeps them open for later arms."""

    def __init__(self, config: BenchConfig, log_dir: Path) -> None:
        self._config = config
        self._log_dir = log_dir
        self._open: dict[str, Fleet] = {}
        self.stack = contextlib.AsyncExitStack()  # what `close` ends

    async def of(self, arm: Arm) -> Fleet:
        """Returns running servers for the arm. Raises EngineStartError or PoolError, and
        ConfigError if servers that already run do not match the arm."""
        if arm.kind not in self._open:
            joined = isinstance(self._config.engines, ExternalEngines)
            if joined or not self._config.bench.colocate_servers:
                await self.close()  # engines.link is one port, so one kind can run at a time
            config = servers_config(arm, self._config)
            fleet = await self.stack.enter_async_context(
                open_fleet(config.fleet, self._log_dir / arm.kind)
            )
            if joined:
                _check_kind(arm, fleet, self._config)
            self._open[arm.kind] = fleet
        return self._open[arm.kind]

    async def close(self) -> None:
        """Stops all servers."""
        self._open.clear()
        await self.stack.aclose()


def _check_kind(arm: Arm, fleet: Fleet, config: Config) -> None:
    """Raises ConfigError if the servers were started for other arms or for another model."""
    for engine in fleet.engines:
        info = engine.info
        key = f"bench.urls.{arm.kind}: {info.url}"
        if (info.draft_tokens > 0) != arm.drafts:
            raise ConfigError(f"{key} " + ("does not draft" if arm.drafts else "drafts"))
        if (info.kv_bytes_per_token > 0) != arm.pool:
            raise ConfigError(f"{key} runs with" + ("out" if arm.pool else "") + " a KV pool")
        path = config.model.path
        if _model_name(info.model_path) != _model_name(path or ""):
            raise ConfigError(f"model.path: {path}, but {info.url} runs {info.model_path}")


def _model_name(path: str) -> str:
    """Returns the name in a folder, a hub id or a snapshot (models--ORG--NAME/snapshots/HASH)."""
    folder = Path(path)
    if folder.parent.name == "snapshots":
        repository = folder.parent.parent.name
        if repository.startswith("models--"):
            return repository.rpartition("--")[2]
    return folder.name


def runnable(config: BenchConfig) -> list[Arm]:
    """Returns the arms that can run with this config; logs the reason for each skipped arm.

    Raises ConfigError if no arm can run.
    """
    arms = []
    reasons = []
    for name in config.bench.arms:
        reason = _missing(EVERY[name], config) or _contradiction(EVERY[name], config)
        if reason is None:
            arms.append(EVERY[name])
        else:
            logger.info("skipping arm %s: %s", name, reason)
            reasons.append(f"{name}: {reason}")
    if not arms:
        raise ConfigError(f"bench.arms: no arm can run with this config; {reasons[0]}")
    return arms


def _missing(arm: Arm, config: BenchConfig) -> str | None:
    if arm.pool and config.kv_pool.backend == "none":
        return "kv_pool.backend is none"
    if arm.drafts and config.draft.scope == "none":
        return "draft.scope is none"
    if isinstance(config.engines, ExternalEngines) and arm.kind not in config.bench.urls:
        return f"no servers in bench.urls.{arm.kind}"
    return None


def _contradiction(arm: Arm, config: BenchConfig) -> str | None:
    """Returns the problem of this config for servers of the arm's kind; None if there is none."""
    try:
        servers = servers_config(arm, config)
        if isinstance(servers.engines, LocalEngines):
            require_exact(servers.fleet, gpu_visible())
    except ConfigError as error:
        return str(error)
    return None
