"""The driver's side of an actor that runs one process on a node of a Ray cluster (ray_host.py)."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from seer_sgl.errors import EngineStartError, SeerError

from .ray_host import Hosted, ProcessHost
from .ray_process import RemoteProcess

STOP_S = 20.0  # for the end of a process on a node that answers, and the rest of its log
CALLS = 4  # at once, of an actor: `follow` and `stop` must not wait for each other


class Actor:
    """An actor of a `kind`, which Ray never restarts: its end is the end of its process.

    `options`: Ray's, on where it runs and what it reserves there.
    """

    def __init__(self, kind: type[ProcessHost], **options: Any) -> None:
        self.hosted: Hosted | None = None
        self.process: RemoteProcess | None = None
        self._host: Any = (
            ray.remote(kind)
            .options(max_restarts=0, max_task_retries=0, max_concurrency=CALLS, **options)
            .remote()
        )

    async def start(self, log: Path, *arguments: Any) -> None:
        """Starts the process once Ray has placed the actor. `log`: the copy of its log here.

        Raises SeerError like the actor's `start`, and RayError if the actor is lost.
        """
        try:
            self.hosted = Hosted(*await self._host.start.remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, SeerError):
                raise error.cause from None
            raise EngineStartError(f"the actor failed: {error}") from error
        self.process = RemoteProcess(self._host, self.hosted, log)

    async def end(self) -> None:
        try:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    if self.hosted is not None:
                        await self._host.stop.remote()
                    if self.process is not None:
                        await self.process.logged()
        finally:
            if self.process is not None:
                await self.process.close()
            with contextlib.suppress(RayError, ValueError):
                await asyncio.to_thread(ray.kill, self._host)
