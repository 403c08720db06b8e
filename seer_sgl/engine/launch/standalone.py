"""`seer-sgl engine`: one SGLang server in this terminal."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import msgspec

from seer_sgl.config import DraftConfig, ExternalEngines, FleetConfig, KvPoolConfig, load
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.hicache import Pool, open_pool
from seer_sgl.link.contract import API_KEY, LINK_TOKEN, LINK_URL
from seer_sgl.link.server import link_url, shared_token
from seer_sgl.processes.child import free_port, require_free_port

from . import draft_flags, exact
from .process import (
    SERVER_MODULE,
    cpu_flags,
    engine_environment,
    gpu_visible,
    model_flags,
    require_model,
    require_sglang,
    server_flags,
)
from .rank_count import DATA_PARALLEL

SGLANG_DEFAULT_PORT = 30000
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FLEET = "--fleet"
REPLICAS = tuple(f"--{name}" for name in DATA_PARALLEL)


def exec_engine(arguments: list[str]) -> NoReturn:
    """Replaces this process with the server.

    `arguments`: SGLang's own flags, passed through unchanged. `--fleet CONFIG` applies that
    config's model, flags, API key, KV pool and link.
    Raises ConfigError for a missing SGLang or model, a port in use, a host without a token, or an
    unusable pool or link.
    """
    require_sglang()
    flags, fleet = _without_fleet(arguments)
    # Defaults come first: SGLang uses the last value of a repeated flag.
    defaults = [] if gpu_visible() else server_flags(cpu_flags())
    environment = engine_environment(None)
    if fleet is not None:
        config = load(Path(fleet)).fleet
        if not isinstance(config.engines, ExternalEngines):
            raise ConfigError(
                f"engine: {FLEET}: with engines.launch: {config.engines.launch}, the driver starts "
                "the engines itself"
            )
        defaults += _fleet_flags(config)
        environment |= _fleet_environment(config.engines, config.draft)
    if not any(_value([*defaults, *flags], flag) for flag in REPLICAS):  # a port for each replica
        # The port that SGLang itself picks may be taken by an outgoing connection first.
        defaults = ["--nccl-port", str(free_port()), *defaults]
    if _value([*defaults, *flags], "--host") is None:
        defaults += ["--host", LOOPBACK[0]]  # overrides a host in SGLang's own --config file
    if not {"-h", "--help"} & set(flags):
        _check([*defaults, *flags], bool(environment.get(API_KEY)))
        if fleet is not None:
            host = _value([*defaults, *flags], "--host")
            pool = asyncio.run(_pool(config.kv_pool, host in LOOPBACK))
            defaults += server_flags(pool.flags(gpu_visible()))
            environment |= pool.environment()
    command = [sys.executable, "-m", SERVER_MODULE, *defaults, *flags]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _without_fleet(arguments: list[str]) -> tuple[list[str], str | None]:
    """Returns SGLang's flags, and the value of `--fleet`. Raises ConfigError if it is invalid."""
    flags, fleet = list(arguments), None
    for index, flag in enumerate(arguments):
        if flag == FLEET or flag.startswith(f"{FLEET}="):
            fleet = _value(arguments, FLEET)
            if fleet is None:
                raise ConfigError(f"engine: {FLEET} needs a config file")
            del flags[index : index + (2 if flag == FLEET else 1)]
            break
    if _value(flags, FLEET) is not None:
        raise ConfigError(f"engine: {FLEET} is given twice")
    return flags, fleet


def _fleet_flags(config: FleetConfig) -> list[str]:
    gpu = gpu_visible()
    exact.require_exact(config, gpu)
    flags = draft_flags.flags(config.draft) | exact.flags(config, gpu) | config.engines.flags()
    return server_flags(flags | model_flags(config.model))


def _fleet_environment(engines: ExternalEngines, draft: DraftConfig) -> dict[str, str]:
    environment = draft_flags.environment(draft, engines.exact)
    if engines.api_key is not None:
        environment[API_KEY] = engines.api_key
    if draft.hub is not None:
        environment[LINK_TOKEN] = shared_token("draft hub", "draft.hub")
    if engines.link is not None:
        environment[LINK_TOKEN] = shared_token("driver")
        environment[LINK_URL] = link_url(engines.link)
    return environment


async def _pool(config: KvPoolConfig, loopback: bool) -> Pool:
    """Returns the fleet's pool, which runs elsewhere. Raises ConfigError if it is unreachable.

    Engines that serve other machines also open their pool ports to them.
    """
    config = msgspec.structs.replace(config, open_ports=not loopback)
    with tempfile.TemporaryDirectory() as logs:
        async with open_pool(config, Path(logs)) as pool:
            return pool


def _check(flags: list[str], has_api_key: bool) -> None:
    model = _value(flags, "--model-path", "--model")
    if model is not None:
        require_model(model)
    elif _value(flags, "--config") is None:  # SGLang's own file may name the model
        raise ConfigError("engine: --model-path is missing")
    host = _value(flags, "--host")
    host = LOOPBACK[0] if host is None else host  # an empty one is every address
    if host not in LOOPBACK and not has_api_key and not _value(flags, "--api-key"):
        raise ConfigError(f"engine: --host {host} listens beyond loopback: set {API_KEY}")
    port = _value(flags, "--port") or str(SGLANG_DEFAULT_PORT)
    if not port.isdigit():
        raise ConfigError(f"engine: --port {port} is not a number")
    require_free_port(int(port), "engine: --port", LOOPBACK[0] if host in LOOPBACK else host)


def _value(flags: list[str], *names: str) -> str | None:
    """Returns the last value of a flag, given as `--flag value` or `--flag=value`."""
    last = None
    for index, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name in names:
            last = value if equals else (flags[index + 1] if index + 1 < len(flags) else None)
    return last
