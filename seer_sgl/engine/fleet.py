"""The engines of a rollout: started here or joined, all at once, or a clear reason why not."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from seer_sgl.config import Config, FlagValue
from seer_sgl.engine.describe import describe
from seer_sgl.engine.session import open_session
from seer_sgl.errors import ConfigError, EngineStartError, EngineUnavailable
from seer_sgl.kvpool.hicache import Pool, open_pool
from seer_sgl.link.contract import API_KEY, LINK_TOKEN, LINK_URL
from seer_sgl.link.drafthub import DistantHub, DraftHub, Drafts
from seer_sgl.link.server import LinkServer, link_url, open_link, shared_token
from seer_sgl.processes import OwnedProcess, free_port, require_free_port
from seer_sgl.types import EngineInfo

from .client import HttpEngine
from .launch import draft_flags
from .launch.process import cpu_flags, gpu_visible, model_flags, open_ports, start_server

POLL_S = 0.25
REMIND_S = 15.0
JOIN_TIMEOUT_S = 10.0  # an external engine is up already; this only rides out a hiccup
LINK_TIMEOUT_S = 15.0  # its plugin tries twice a second
Announce = Callable[[str], None]


class _Start(NamedTuple):
    """An engine that is coming up. `process` is None for an external one."""

    engine_id: str
    url: str
    timeout_s: float
    process: OwnedProcess | None = None


class Fleet(NamedTuple):
    """Engines that are up, the link to their plugins, and the draft hub if they draft."""

    engines: list[HttpEngine]
    link: LinkServer
    drafts: Drafts | None


@contextlib.asynccontextmanager
async def open_fleet(config: Config, log_dir: Path, announce: Announce) -> AsyncIterator[Fleet]:
    """Start or join the engines of `config`; what was started is stopped on the way out.

    `announce` receives one line for each step of the start-up. Raises EngineStartError, PoolError
    or ConfigError; then nothing is left running.
    """
    async with contextlib.AsyncExitStack() as stack:
        link = await stack.enter_async_context(_open_link(config))
        drafts = stack.enter_context(_distant_hub(config)) or link.drafts
        session = await stack.enter_async_context(open_session(api_key(config)))
        if config.engines.launch == "external":
            urls = [url.rstrip("/") for url in config.engines.urls]
            starts = [_Start(f"e{i}", url, JOIN_TIMEOUT_S) for i, url in enumerate(urls)]
        else:
            require_model(config.model.path or "")
            pool = await stack.enter_async_context(open_pool(config.kv_pool, log_dir, announce))
            starts = await stack.enter_async_context(
                _launched(config, log_dir, pool, link, announce)
            )
        infos = await _all_ready(starts, session, announce)
        infos = [await _with_link(info, config, link) for info in infos]
        engines = [
            HttpEngine(info, session, _obituary(start))
            for start, info in zip(starts, infos, strict=True)
        ]
        yield Fleet(engines, link, drafts)


def api_key(config: Config) -> str | None:
    """The bearer token of the servers, from the config or the environment."""
    return config.engines.api_key or os.environ.get(API_KEY)


def _open_link(config: Config) -> contextlib.AbstractAsyncContextManager[LinkServer]:
    draft = config.draft
    drafts = None
    if draft.scope != "none" and draft.hub is None:
        drafts = DraftHub(draft.memory_bytes())
    if config.engines.link is None:
        # Engines show one token to all they link to.
        token = None if draft.hub is None else shared_token("draft hub", "draft.hub")
        return open_link(token=token, drafts=drafts)
    token = shared_token("engines")
    host, _, port = config.engines.link.rpartition(":")
    require_free_port(int(port), "engines.link", host)
    return open_link(host, int(port), token, drafts)


@contextlib.contextmanager
def _distant_hub(config: Config) -> Iterator[DistantHub | None]:
    """The link to a draft hub that is a process of its own; None without one."""
    if config.draft.hub is None:
        yield None
        return
    hub = DistantHub(link_url(config.draft.hub), shared_token("draft hub", "draft.hub"))
    try:
        yield hub
    finally:
        hub.close()


async def _with_link(info: EngineInfo, config: Config, link: LinkServer) -> EngineInfo:
    """The engine, once its plugin is linked; without a KV pool where that cannot be.

    Nobody else tells when KV has reached the pool, or what siblings elsewhere decode. Raises
    EngineStartError.
    """
    shares = config.draft.scope == "fleet" and config.draft.hub is None and info.draft_tokens > 0
    if info.pool is None and not shares:
        return info
    if config.engines.launch == "external" and config.engines.link is None:
        return msgspec.structs.replace(info, pool=None)
    try:
        async with asyncio.timeout(LINK_TIMEOUT_S):
            await link.until_linked(info.instance or "")
    except TimeoutError:
        raise EngineStartError(
            f"engine {info.engine_id} ({info.url}) does not come to the driver's link, {link.url}; "
            f"it finds it by its {LINK_URL} and {LINK_TOKEN} (`seer-sgl engine --fleet` sets it)"
        ) from None
    return info


def _obituary(start: _Start) -> Callable[[], str | None]:
    return start.process.obituary if start.process else lambda: None


@contextlib.asynccontextmanager
async def _launched(
    config: Config, log_dir: Path, pool: Pool, link: LinkServer, announce: Announce
) -> AsyncIterator[list[_Start]]:
    """Every local server process, started; stopped on the way out."""
    engines = config.engines
    starts: list[_Start] = []
    if engines.base_port is None:
        ports = [free_port() for _ in range(engines.count)]
    else:
        ports = [engines.base_port + i for i in range(engines.count)]
        for port in ports:
            require_free_port(port, "engines.base_port")
    announce(f"starting {engines.count} SGLang engine(s), logs in {log_dir}")
    own = engines.flags()
    address = str(own["dist-init-addr"]) if "dist-init-addr" in own else None
    for line in open_ports(_ranks(own), address, {**os.environ, **engines.environment}):
        announce(f"open ports: {line}")
    environment = pool.environment() | draft_flags.environment(config.draft)
    environment |= {LINK_URL: link.url, LINK_TOKEN: link.token, **engines.environment}
    try:
        for i, port in enumerate(ports):
            process = await start_server(
                pool.flags() | draft_flags.flags(config.draft) | _flags(config, i, port),
                log_dir / f"e{i}.log",
                _cores(config, i),
                environment,
                api_key(config),
            )
            url = f"http://127.0.0.1:{port}"
            starts.append(_Start(f"e{i}", url, engines.start_timeout_s, process))
        yield starts
    finally:
        await asyncio.gather(*(start.process.stop() for start in starts if start.process))


def _flags(config: Config, index: int, port: int) -> dict[str, FlagValue]:
    """The flags of one server. The user's own win over our defaults."""
    own = config.engines.flags()
    # SGLang would draw a port for its ranks that an outgoing connection may take before they do.
    flags = model_flags(config.model) | {"port": port, "nccl-port": free_port()}
    if gpu_visible():
        flags["base-gpu-id"] = index * _ranks(own)
    else:
        flags |= cpu_flags()
    return flags | own


def _ranks(own: dict[str, FlagValue]) -> int:
    """Of one server, each with a GPU of its own."""
    return int(str(own.get("tp-size", own.get("tensor-parallel-size", own.get("tp", 1)))))


def _cores(config: Config, index: int) -> list[int] | None:
    """The cores to pin an engine to, or None."""
    cores = config.engines.cores
    if cores == "auto":
        usable = sorted(os.sched_getaffinity(0))
        return [usable[index % len(usable)]]
    return cores[index] if isinstance(cores, list) else None


async def _all_ready(
    starts: list[_Start], session: aiohttp.ClientSession, announce: Announce
) -> list[EngineInfo]:
    """Wait for every engine at once; the first failure cancels the rest and is raised."""
    began = time.monotonic()
    pending = {start.engine_id: start for start in starts}

    async def wait(start: _Start) -> EngineInfo:
        info = await _await_ready(start, session)
        del pending[start.engine_id]
        announce(
            f"engine {info.engine_id} ready after {time.monotonic() - began:.0f} s: {info.url}, "
            f"SGLang {info.sglang_version}, {info.max_total_num_tokens} KV tokens, "
            f"{info.max_running_requests} requests, "
            + (f"plugin {info.plugin}" if info.plugin else "stock (no seer-sgl plugin)")
        )
        return info

    async def remind() -> None:
        while True:
            await asyncio.sleep(REMIND_S)
            for start in pending.values():
                doing = f": {start.process.last_line()}" if start.process else ""
                seconds = time.monotonic() - began
                announce(f"engine {start.engine_id} not ready after {seconds:.0f} s{doing}")

    try:
        async with asyncio.TaskGroup() as group:
            reminder = group.create_task(remind())
            tasks = [group.create_task(wait(start)) for start in starts]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            reminder.cancel()
    except* (EngineStartError, ConfigError) as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await_ready(start: _Start, session: aiohttp.ClientSession) -> EngineInfo:
    """Poll an engine until it tells who it is. Raises EngineStartError."""
    process = start.process
    deadline = time.monotonic() + start.timeout_s
    while True:
        if process is not None and process.exit_status is not None:
            raise EngineStartError(
                f"engine {start.engine_id} ended with status {process.exit_status} while "
                f"starting; the end of {process.log}:\n{process.log_tail()}"
            )
        try:
            info = await describe(session, start.engine_id, start.url)
        except EngineUnavailable as error:
            if time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
                continue
            log = f"; the end of {process.log}:\n{process.log_tail()}" if process else ""
            raise EngineStartError(f"not ready after {start.timeout_s:g} s: {error}{log}") from None
        if process is not None and info.plugin is None:
            raise EngineStartError(
                f"engine {start.engine_id} runs without the seer-sgl plugin; is seer-sgl installed "
                f"in its environment (`seer-sgl doctor`)? SGLANG_PLUGINS may leave it out"
            )
        if process is not None:
            process.note_shared_memory()
        return info


def require_model(path: str) -> None:
    """Raise ConfigError unless `path` is a model folder or may be a model hub id."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path: {path} has no config.json")
        return
    if "://" in path:
        return
    hub_id = path.count("/") == 1 and not path.startswith(("/", ".", "~"))
    if not hub_id or folder.parent.is_dir():
        raise ConfigError(f"model.path: {path} does not exist")
