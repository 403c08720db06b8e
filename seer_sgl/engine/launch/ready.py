"""Waits until starting engines are ready, or raises the reason why one is not."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

import aiohttp

from seer_sgl.engine.describe import describe
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineBroken, EngineDelayed, EngineStartError, EngineUnavailable
from seer_sgl.link.contract import rank_instance
from seer_sgl.processes.child import last_line, log_tail
from seer_sgl.timing import DEFAULT, Timing

from .launcher import EngineStart

logger = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 0.25


async def all_ready(
    starts: Sequence[EngineStart],
    session: aiohttp.ClientSession,
    timing: Timing = DEFAULT,
) -> list[list[EngineInfo] | EngineDelayed]:
    """Waits for all servers concurrently and returns the descriptions of their engines.

    For a server whose machine was lost meanwhile it returns the error. Raises the first other
    failure, EngineStartError or ConfigError, and cancels the other waits.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    pending = {start.engine_id: start for start in starts}

    async def wait(start: EngineStart) -> list[EngineInfo] | EngineDelayed:
        try:
            infos = await await_ready(start, session, timing)
        except EngineDelayed as delayed:
            return delayed
        finally:
            del pending[start.engine_id]
        for info in infos:
            logger.info(
                "engine %s ready after %.0f s: %s, SGLang %s, %d KV tokens, %d requests, %s",
                info.engine_id,
                loop.time() - began,
                info.url,
                info.sglang_version,
                info.max_total_num_tokens,
                info.max_running_requests,
                f"plugin {info.plugin}" if info.plugin else "stock (no seer-sgl plugin)",
            )
        for ability, why in infos[0].off.items():
            logger.warning("engine %s runs without `%s`: %s", start.engine_id, ability, why)
        return infos

    async def remind() -> None:
        while True:
            await asyncio.sleep(timing.start_remind_s)
            for start in pending.values():
                line = f": {last_line(start.process.log)}" if start.process else ""
                seconds = loop.time() - began
                logger.info("engine %s not ready after %.0f s%s", start.engine_id, seconds, line)

    reminder = asyncio.create_task(remind())
    try:
        return await all_done(map(wait, starts))
    finally:
        reminder.cancel()
        await asyncio.wait({reminder})


async def all_done(works: Iterable[Awaitable[T]]) -> list[T]:
    """Returns all results; if one fails or this is cancelled, the others have ended too."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def await_ready(
    start: EngineStart, session: aiohttp.ClientSession, timing: Timing = DEFAULT
) -> list[EngineInfo]:
    """Polls a server until it returns the descriptions of its engines.

    Raises EngineStartError, and EngineDelayed if its machine was lost.
    """
    process = start.process
    loop = asyncio.get_running_loop()
    deadline = loop.time() + start.timeout_s
    while True:
        if process is not None and process.exit_status is not None:
            raise EngineStartError(
                f"engine {start.engine_id} ended with status {process.exit_status} while "
                f"starting; the end of {process.log}:\n{log_tail(process.log)}"
            )
        if (lost := start.exit_reason()) is not None:
            raise EngineDelayed(start.engine_id, lost)
        try:
            infos = await _described(start, session, timing)
        except EngineBroken as error:  # only another start repairs it
            raise EngineStartError(str(error)) from error
        except EngineUnavailable as error:
            if loop.time() < deadline:
                await asyncio.sleep(POLL_S)
                continue
            log = f"; the end of {process.log}:\n{log_tail(process.log)}" if process else ""
            raise EngineStartError(
                f"not ready after {start.timeout_s:g} s: {error}{log}"
            ) from error
        if process is not None and infos[0].plugin is None:
            raise EngineStartError(
                f"engine {start.engine_id} runs without the seer-sgl plugin; is seer-sgl installed "
                f"in its environment (`seer-sgl doctor`)? SGLANG_PLUGINS may exclude it"
            )
        if process is not None:
            process.note_shared_memory()
        return infos


async def _described(
    start: EngineStart, session: aiohttp.ClientSession, timing: Timing
) -> list[EngineInfo]:
    """Returns the descriptions of the started server.

    Raises EngineUnavailable also if another one answers: it may have taken the port first.
    """
    infos = await describe(session, start.engine_id, start.url, timing.control_timeout_s)
    started = rank_instance(start.instance, 0, infos[0].dp_size)
    if started is not None and infos[0].plugin and infos[0].instance != started:
        raise EngineUnavailable(f"another server than the one started answers at {start.url}")
    return infos
