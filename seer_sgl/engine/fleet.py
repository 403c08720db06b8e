"""The engines of a rollout: started here or joined, all at once, or a clear reason why not."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import aiohttp

from seer_sgl.config import Config, FlagValue
from seer_sgl.errors import ConfigError, EngineStartError, EngineUnavailable
from seer_sgl.types import EngineInfo

from .client import HttpEngine, describe, open_session
from .process import (
    EngineProcess,
    cpu_flags,
    free_port,
    gpu_visible,
    require_free_port,
    server_flags,
)

POLL_S = 0.25
JOIN_TIMEOUT_S = 10.0  # an external engine is up already; this only rides out a hiccup
Announce = Callable[[str], None]


@contextlib.asynccontextmanager
async def open_fleet(
    config: Config, log_dir: Path, announce: Announce
) -> AsyncIterator[list[HttpEngine]]:
    """Start or join the engines of `config`; local ones are stopped on the way out.

    `announce` receives one line for each step of the start-up. Raises EngineStartError or
    ConfigError; then nothing is left running.
    """
    processes: list[EngineProcess] = []
    try:
        async with open_session(config.engines.api_key) as session:
            if config.engines.launch == "external":
                starts = _join_all(config, session)
            else:
                starts = await _launch_all(config, session, log_dir, processes, announce)
            infos = await _all_ready(starts, announce)
            yield [HttpEngine(info, session, config.sampling) for info in infos]
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


def _join_all(
    config: Config, session: aiohttp.ClientSession
) -> list[Coroutine[Any, Any, EngineInfo]]:
    urls = [url.rstrip("/") for url in config.engines.urls]
    return [_await_ready(session, f"e{i}", url, JOIN_TIMEOUT_S) for i, url in enumerate(urls)]


async def _launch_all(
    config: Config,
    session: aiohttp.ClientSession,
    log_dir: Path,
    processes: list[EngineProcess],
    announce: Announce,
) -> list[Coroutine[Any, Any, EngineInfo]]:
    """Start every server process (into `processes`); one waiter for each."""
    engines = config.engines
    require_model(config.model.path or "")
    if engines.base_port is None:
        ports = [free_port() for _ in range(engines.count)]
    else:
        ports = [engines.base_port + i for i in range(engines.count)]
        for port in ports:
            require_free_port(port, "engines.base_port")
    announce(f"starting {engines.count} SGLang engine(s), logs in {log_dir}")
    starts = []
    for i, port in enumerate(ports):
        process = await EngineProcess.start(
            server_flags(_flags(config, i, port)), log_dir / f"e{i}.log", _cores(config, i)
        )
        processes.append(process)
        url = f"http://127.0.0.1:{port}"
        starts.append(_await_ready(session, f"e{i}", url, engines.start_timeout_s, process))
    return starts


def _flags(config: Config, index: int, port: int) -> dict[str, FlagValue]:
    """The flags of one server. The user's own win over our defaults."""
    own = {name.replace("_", "-"): value for name, value in config.engines.sglang.items()}
    flags: dict[str, FlagValue] = {"model-path": str(config.model.path), "port": port}
    if config.model.tokenizer_path:
        flags["tokenizer-path"] = config.model.tokenizer_path
    if config.engines.api_key:
        flags["api-key"] = config.engines.api_key
    if gpu_visible():
        ranks = own.get("tp-size", own.get("tensor-parallel-size", own.get("tp", 1)))
        flags["base-gpu-id"] = index * int(str(ranks))
    else:
        flags |= cpu_flags()
    return flags | own


def _cores(config: Config, index: int) -> list[int] | None:
    """The cores to pin an engine to, or None."""
    cores = config.engines.cores
    if cores == "auto":
        usable = sorted(os.sched_getaffinity(0))
        return [usable[index % len(usable)]]
    return cores[index] if isinstance(cores, list) else None


async def _all_ready(
    starts: Iterable[Coroutine[Any, Any, EngineInfo]], announce: Announce
) -> list[EngineInfo]:
    """Wait for every engine at once; the first failure cancels the rest and is raised."""
    began = time.monotonic()

    async def report(start: Coroutine[Any, Any, EngineInfo]) -> EngineInfo:
        info = await start
        announce(
            f"engine {info.engine_id} ready after {time.monotonic() - began:.0f} s: {info.url}, "
            f"SGLang {info.sglang_version}, {info.max_total_num_tokens} KV tokens, "
            f"{info.max_running_requests} requests, "
            + (f"plugin {info.plugin}" if info.plugin else "stock (no seer-sgl plugin)")
        )
        return info

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(report(start)) for start in starts]
    except* (EngineStartError, ConfigError) as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await_ready(
    session: aiohttp.ClientSession,
    engine_id: str,
    url: str,
    timeout_s: float,
    process: EngineProcess | None = None,
) -> EngineInfo:
    """Poll an engine until it tells who it is. Raises EngineStartError."""
    deadline = time.monotonic() + timeout_s
    while True:
        if process is not None and process.exit_status is not None:
            raise EngineStartError(
                f"engine {engine_id} ended with status {process.exit_status} while starting; "
                f"the end of {process.log}:\n{process.log_tail()}"
            )
        try:
            info = await describe(session, engine_id, url)
        except EngineUnavailable as error:
            if time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
                continue
            log = f"; the end of {process.log}:\n{process.log_tail()}" if process else ""
            raise EngineStartError(f"not ready after {timeout_s:g} s: {error}{log}") from None
        if process is not None and info.plugin is None:
            raise EngineStartError(
                f"engine {engine_id} runs without the seer-sgl plugin; is seer-sgl installed in "
                f"its environment (`seer-sgl doctor`)? SGLANG_PLUGINS may leave it out"
            )
        return info


def require_model(path: str) -> None:
    """Raise ConfigError unless `path` is a model folder or may be a model hub id."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path: {path} has no config.json")
        return
    hub_id = path.count("/") == 1 and not path.startswith(("/", ".", "~"))
    if not hub_id or folder.parent.is_dir():
        raise ConfigError(f"model.path: {path} does not exist")
