"""The driver's side of a server on a node of a Ray cluster: its log, and how it ended."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from typing_extensions import override

from seer_sgl.errors import first_line
from seer_sgl.processes.child import LOG_PATH, open_log

from .launcher import EngineProcess
from .ray_host import Hosted, Output

logger = logging.getLogger(__name__)
RETRY_S = 0.5


class RemoteProcess(EngineProcess):
    """Copies the log of a server into a file here, which outlives its node, until it ends.

    `host`: the actor that runs it.
    """

    def __init__(self, host: Any, hosted: Hosted, log: Path) -> None:
        self._host = host
        self._hosted = hosted
        self.log = log
        self._status: int | None = None
        self._lost: str | None = None
        self._cut = False  # a part of the log could not be written
        open_log(log).close()
        self._following = asyncio.create_task(self._follow())

    @property
    @override
    def exit_status(self) -> int | None:
        return self._status

    @override
    def exit_reason(self) -> str | None:
        if self._lost is not None:
            return f"{self._lost}{LOG_PATH}{self.log}"
        if self._status is None:
            return None
        where = f"its process on {self._hosted.host}"
        return f"{where} ended with status {self._status}{LOG_PATH}{self.log}"

    @override
    def note_shared_memory(self) -> None:
        self._host.note_shared_memory.remote()

    async def logged(self) -> None:
        """Waits until the log here is complete: the server has ended, or its actor is gone."""
        await asyncio.wait({self._following})

    async def close(self) -> None:
        """Stops watching the server."""
        self._following.cancel()
        await asyncio.wait({self._following})

    def _copy(self, text: bytes) -> None:
        """Writes a part of the log; without a disk for it, the end of the server shows all the
        same."""
        try:
            with self.log.open("ab") as log:
                log.write(text)
        except OSError as error:
            if not self._cut:
                logger.error("log file %s: %s; a part of it is missing", self.log, error.strerror)
            self._cut = True

    async def _follow(self) -> None:
        offset = 0
        while self._status is None:
            try:
                output: Output = await self._host.follow.remote(offset)
            except ActorUnavailableError:  # a broken connection; Ray decides what it means
                await asyncio.sleep(RETRY_S)
            except RayError as error:
                self._lost = await _why_lost(self._hosted, error)
                return
            else:
                self._copy(output.log)
                offset += len(output.log)
                self._status = output.exit_status


async def _why_lost(hosted: Hosted, error: Exception) -> str:
    try:
        nodes = await asyncio.to_thread(ray.nodes)
    except Exception:  # of several kinds: the cluster itself is away
        return f"its actor on {hosted.host} ended, and the cluster does not answer"
    if any(node["NodeID"] == hosted.node_id and node["Alive"] for node in nodes):
        return f"its actor on {hosted.host} ended: {first_line(error)}"
    return f"its node {hosted.host} left the cluster"
