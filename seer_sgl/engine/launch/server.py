"""The SGLang server of one engine of a fleet: flags, environment and process, on any machine."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from seer_sgl.config import FlagValue, FleetConfig, StartedEngines
from seer_sgl.kvpool.hicache import Pool
from seer_sgl.link import contract
from seer_sgl.processes.child import OwnedProcess, free_port

from . import draft_flags, exact, process
from .process import (
    api_key,
    cpu_flags,
    engine_environment,
    gpu_visible,
    model_flags,
    server_flags,
)
from .rank_count import copies


class ServerPlan(NamedTuple):
    """What the servers of a fleet have in common. `engines`: of the config.

    `environment`: variables of each server, besides the config's. `module`: the program.
    """

    config: FleetConfig
    engines: StartedEngines
    pool: Pool
    environment: Mapping[str, str]
    module: str

    @classmethod
    def of(cls, config: FleetConfig, pool: Pool, environment: Mapping[str, str]) -> "ServerPlan":
        """Returns the plan of SGLang servers with our plugin, for engines that are started."""
        assert isinstance(config.engines, StartedEngines)
        return cls(config, config.engines, pool, environment, process.SERVER_MODULE)


class Place(NamedTuple):
    """Where one server runs on its machine. `cores`: those that it is pinned to; None: any."""

    host: str
    port: int
    base_gpu: int = 0
    cores: list[int] | None = None


async def start_planned(
    plan: ServerPlan, place: Place, instance: str, log: Path, kv_tokens: int | None = None
) -> OwnedProcess:
    """Starts the server of an engine on this machine. `instance`: a name for this start.

    kv_tokens: the KV capacity that it is to have; None: what SGLang finds. Raises ConfigError.
    """
    config, gpu = plan.config, gpu_visible()
    # SGLang measures its free memory; the schedule relies on the capacity of before.
    flags: dict[str, FlagValue] = {} if kv_tokens is None else {"max-total-tokens": kv_tokens}
    flags |= plan.pool.flags(gpu) | draft_flags.flags(config.draft) | exact.flags(config, gpu)
    flags |= place_flags(config, place)
    # The copies of the model share the cores.
    threads = max(1, len(place.cores or ()) // copies(config.engines.flags()))
    environment = {
        **engine_environment(threads),
        **plan.pool.environment(),
        **draft_flags.environment(config.draft, config.engines.exact),
        **plan.environment,
        **plan.engines.environment,
        contract.INSTANCE: instance,
    }
    key = api_key(config.engines)
    if key is not None:  # not a flag: every user can read command lines
        environment[contract.API_KEY] = key
    command = [sys.executable, "-m", plan.module, *server_flags(flags)]
    return await OwnedProcess.start(command, log, environment, place.cores)


def place_flags(config: FleetConfig, place: Place) -> dict[str, FlagValue]:
    """Returns the flags of model, machine and place. The user's flags override our defaults."""
    own = config.engines.flags()
    flags = model_flags(config.model) | {"host": place.host, "port": place.port}
    if copies(own) == 1:  # each copy needs its own port
        # The port that SGLang itself picks may be taken by an outgoing connection first.
        flags["nccl-port"] = free_port()
    # The driver's polls: four lines per second, 30 MB of log per day.
    flags["uvicorn-access-log-exclude-prefixes"] = ["/v1/loads", "/model_info"]
    flags |= {"base-gpu-id": place.base_gpu} if gpu_visible() else cpu_flags()
    return flags | own
