"""The servers that arms run on: one kind for each set of techniques, shared by the arms of it."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from seer_sgl.config import Config, SamplingConfig
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.errors import ConfigError

from .arms import EVERY, Arm, servers_config
from .config import BenchConfig
from .router import installed, routed

Announce = Callable[[str], None]


class Fleets:
    """Opens the servers of a kind when an arm needs them, and keeps them as long as wanted."""

    def __init__(self, config: BenchConfig, log_dir: Path, announce: Announce) -> None:
        self._config = config
        self._log_dir = log_dir
        self._announce = announce
        self._open: dict[str, Fleet] = {}
        self._stack = contextlib.AsyncExitStack()

    async def of(self, arm: Arm, sampling: SamplingConfig) -> Fleet:
        """Servers for the arm, up. Raises EngineStartError."""
        if arm.kind not in self._open:
            if not self._config.bench.together:
                await self.close()
            config = servers_config(arm, self._config, self._config.bench.ngram)
            self._open[arm.kind] = await self._stack.enter_async_context(
                open_fleet(config, self._log_dir / arm.kind, self._announce)
            )
        fleet = self._open[arm.kind]
        if not arm.router:
            return fleet
        if "router" not in self._open:
            log = self._log_dir / "router.log"
            behind = await self._stack.enter_async_context(routed(fleet, sampling, log))
            self._open["router"] = behind
        return self._open["router"]

    async def close(self) -> None:
        """Stop everything that is up."""
        self._open.clear()
        await self._stack.aclose()


def runnable(config: BenchConfig, announce: Announce) -> list[Arm]:
    """The arms that can run with this config; of each other one, why not, is announced."""
    arms = []
    for name in config.bench.arms:
        why_not = _missing(EVERY[name], config)
        if why_not is None:
            arms.append(EVERY[name])
        else:
            announce(f"without {name}: {why_not}")
    if not arms:
        raise ConfigError("bench.arms: none of them can run with this config")
    return arms


def _missing(arm: Arm, config: Config) -> str | None:
    if arm.pool and config.kv_pool.backend == "none":
        return "kv_pool.backend is none"
    if arm.drafts and config.draft.scope == "none":
        return "draft.scope is none"
    if arm.router and not installed():
        return "sglang_router is not installed (pip install sglang-router==0.3.2)"
    # Whether servers draft is decided when they start.
    other = arm.ngram or arm.drafts != (config.draft.scope != "none")
    if config.engines.launch == "external" and other:
        return "the servers at engines.urls are started for another arm"
    return None
