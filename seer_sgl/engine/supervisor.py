"""Restarts the servers of engines that have died, with backoff and quarantine."""

import asyncio
import logging

import aiohttp

from seer_sgl.engine_types import EngineInfo, ServerPhase, ServerState
from seer_sgl.errors import ConfigError, EngineDelayed, EngineStartError, first_line
from seer_sgl.processes.restarts import Incidents, Restarts
from seer_sgl.processes.supervisor import is_due
from seer_sgl.timing import DEFAULT, Timing

from .launch.launcher import EngineStart, Launcher
from .launch.ready import await_ready

logger = logging.getLogger(__name__)
FIRST = ("%s is being started: %s", "%s is up after %.0f s")
AGAIN = ("%s is being restarted: %s", "%s is up again after %.0f s")


class _Supervised:
    """One server: its newest start, and its starts so far. `start` None: it had none yet."""

    def __init__(
        self, info: EngineInfo, start: EngineStart | None, incidents: Incidents, timing: Timing
    ) -> None:
        self.server_id = info.server_id
        self.start = start
        self.kv_tokens = info.max_total_num_tokens
        self.restarts = Restarts(f"engine {info.server_id}", incidents, timing.restart_most_s)
        self.starting: asyncio.Task[None] | None = None  # also its end, in quarantine
        self.given_up = False  # it is quarantined, and what was left of it was ended

    @property
    def phase(self) -> ServerPhase:
        if self.restarts.quarantine is not None:
            return ServerPhase.QUARANTINED
        if self.starting is not None:
            return ServerPhase.STARTING
        ended = self.restarts.down or self.exit_reason is not None
        return ServerPhase.ENDED if ended else ServerPhase.RUNNING

    @property
    def exit_reason(self) -> str | None:
        """How its newest server ended; None if that runs, or if there was none."""
        return None if self.start is None else self.start.exit_reason()


class EngineSupervisor:
    """Watches the servers that the launcher has started. Joined servers are not its concern.

    A server that was restarted has the engine id of the one before. A local one has its place
    and URL too; a cluster chooses a place, so an engine's URL is that of its newest server. The
    driver checks the server before it sends chunks there.
    """

    def __init__(
        self, launcher: Launcher, session: aiohttp.ClientSession, timing: Timing = DEFAULT
    ) -> None:
        self._launcher = launcher
        self._session = session
        self._timing = timing
        self._incidents = Incidents()
        self._kept: dict[str, _Supervised] = {}  # by the id of the server

    def add(self, start: EngineStart, info: EngineInfo) -> None:
        """Watches a server from now on, if it was started here."""
        if start.process is not None:
            self._kept[start.engine_id] = _Supervised(info, start, self._incidents, self._timing)

    def add_late(self, info: EngineInfo, why: str) -> None:
        """Starts the server of an engine as soon as it can be. `info`: what it is to be like."""
        kept = self._kept[info.server_id] = _Supervised(info, None, self._incidents, self._timing)
        kept.restarts.absent(why)

    async def remove(self, server_id: str) -> None:
        """Leaves a server alone from now on; a start in progress is cancelled."""
        kept = self._kept.pop(server_id, None)
        if kept is None:
            return
        self._incidents.names.discard(kept.restarts.name)
        if kept.starting is not None:
            kept.starting.cancel()
            await asyncio.wait({kept.starting})

    def server(self, server_id: str) -> ServerState:
        kept = self._kept.get(server_id)
        if kept is None:
            return ServerState()
        phase = kept.phase
        why = kept.restarts.quarantine or self._launcher.delay(server_id) or kept.exit_reason or ""
        if not why and phase is not ServerPhase.RUNNING:
            why = kept.restarts.reason
        url = None if kept.start is None else kept.start.url
        return ServerState(phase=phase, why=why, starts=kept.restarts.count, url=url)

    def end(self, server_id: str, why: str) -> None:
        """Has a server that runs and hangs restarted, as if it had ended."""
        kept = self._kept.get(server_id)
        if kept is not None and kept.phase is ServerPhase.RUNNING:
            kept.restarts.ended(why, asyncio.get_running_loop().time())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._timing.watch_s)
                for kept in self._kept.values():
                    if kept.starting is not None:
                        continue
                    if is_due(kept.restarts, kept.exit_reason, loop.time()):
                        kept.starting = tasks.create_task(self._start(kept))
                    elif kept.restarts.quarantine is not None and not kept.given_up:
                        kept.starting = tasks.create_task(self._give_up(kept))

    async def _start(self, kept: _Supervised) -> None:
        loop, restarts = asyncio.get_running_loop(), kept.restarts
        begins, works = FIRST if kept.start is None else AGAIN
        logger.warning(begins, restarts.name, restarts.reason)
        began = loop.time()
        restarts.started(began)
        try:
            kept.start = await self._launcher.restart(kept.server_id, kept.kv_tokens)
            await await_ready(kept.start, self._session, self._timing)
            restarts.ready(loop.time())
            logger.info(works, restarts.name, loop.time() - began)
        except Exception as error:  # of any kind: the others are watched all the same
            if not isinstance(error, EngineStartError | ConfigError | OSError):
                logger.exception("%s was not started", restarts.name)
            why = first_line(error).rstrip(":")
            own = not isinstance(error, EngineDelayed)
            restarts.ended(why, loop.time(), ready=False, own=own)
        finally:
            kept.starting = None

    async def _give_up(self, kept: _Supervised) -> None:
        """Ends a server that is not restarted: it may hang, and would keep its place and memory."""
        kept.given_up = True
        try:
            await self._launcher.stop(kept.server_id)
        except Exception:  # such as no descriptor; `aclose` tries again
            logger.exception("%s was not ended", kept.restarts.name)
        finally:
            kept.starting = None
