"""Waits until starting engines are ready, or raises the reason why one is not."""

import asyncio
import logging
import time
from collections.abc import Sequence

import aiohttp

from seer_sgl.engine.describe import describe
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, EngineDelayed, EngineStartError, EngineUnavailable
from seer_sgl.timing import DEFAULT, Timing

from .launcher import EngineStart

logger = logging.getLogger(__name__)
POLL_S = 0.25


async def all_ready(
    starts: Sequence[EngineStart],
    session: aiohttp.ClientSession,
    timing: Timing = DEFAULT,
) -> list[EngineInfo | EngineDelayed]:
    """Waits for all engines concurrently and returns their descriptions.

    The description of an engine whose machine was lost meanwhile is the error. Raises the first
    other failure, EngineStartError or ConfigError, and cancels the other waits.
    """
    began = time.monotonic()
    pending = {start.engine_id: start for start in starts}

    async def wait(start: EngineStart) -> EngineInfo | EngineDelayed:
        try:
            info = await await_ready(start, session, timing)
        except EngineDelayed as delayed:
            return delayed
        finally:
            del pending[start.engine_id]
        logger.info(
            "engine %s ready after %.0f s: %s, SGLang %s, %d KV tokens, %d requests, %s",
            info.engine_id,
            time.monotonic() - began,
            info.url,
            info.sglang_version,
            info.max_total_num_tokens,
            info.max_running_requests,
            f"plugin {info.plugin}" if info.plugin else "stock (no seer-sgl plugin)",
        )
        for ability, why in info.off.items():
            logger.warning("engine %s runs without `%s`: %s", info.engine_id, ability, why)
        return info

    async def remind() -> None:
        while True:
            await asyncio.sleep(timing.start_remind_s)
            for start in pending.values():
                line = f": {start.process.last_line()}" if start.process else ""
                seconds = time.monotonic() - began
                logger.info("engine %s not ready after %.0f s%s", start.engine_id, seconds, line)

    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            reminder = group.create_task(remind())
            tasks = [group.create_task(wait(start)) for start in starts]
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            reminder.cancel()
    except* (EngineStartError, ConfigError) as failures:
        failure = failures.exceptions[0]
    # Python before 3.11.4 wraps what is raised inside `except*` into a group (gh-103590).
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]


async def await_ready(
    start: EngineStart, session: aiohttp.ClientSession, timing: Timing = DEFAULT
) -> EngineInfo:
    """Polls an engine until it returns its description.

    Raises EngineStartError, and EngineDelayed if its machine was lost.
    """
    process = start.process
    deadline = time.monotonic() + start.timeout_s
    while True:
        if process is not None and process.exit_status is not None:
            raise EngineStartError(
                f"engine {start.engine_id} ended with status {process.exit_status} while "
                f"starting; the end of {process.log}:\n{process.log_tail()}"
            )
        if (lost := start.exit_reason()) is not None:
            raise EngineDelayed(start.engine_id, lost)
        try:
            info = await _described(start, session, timing)
        except EngineUnavailable as error:
            if time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
                continue
            log = f"; the end of {process.log}:\n{process.log_tail()}" if process else ""
            raise EngineStartError(
                f"not ready after {start.timeout_s:g} s: {error}{log}"
            ) from error
        if process is not None and info.plugin is None:
            raise EngineStartError(
                f"engine {start.engine_id} runs without the seer-sgl plugin; is seer-sgl installed "
                f"in its environment (`seer-sgl doctor`)? SGLANG_PLUGINS may exclude it"
            )
        if process is not None:
            process.note_shared_memory()
        return info


async def _described(
    start: EngineStart, session: aiohttp.ClientSession, timing: Timing
) -> EngineInfo:
    """Returns the description of the started server.

    Raises EngineUnavailable also if another one answers: it may have taken the port first.
    """
    info = await describe(session, start.engine_id, start.url, timing.control_timeout_s)
    if start.instance is not None and info.plugin and info.instance != start.instance:
        raise EngineUnavailable(f"another server than the one started answers at {start.url}")
    return info
