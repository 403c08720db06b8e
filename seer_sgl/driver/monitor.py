"""Polls the engines: detects load, stuck engines and engines that came back.

Generation has no read timeout. An engine counts as stuck if it has chunks in flight and no figure
of its `/v1/loads` changes for `stall_timeout_s`.

Time is counted in polls, not by the clock. After a driver itself was stopped (SIGSTOP, a paused
virtual machine), the clock would show a long silence of healthy engines.
"""

import asyncio
import logging
from typing import Any, Protocol

from seer_sgl.errors import EngineError, RolloutError
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.types import EngineLoad

from .engine import Engine
from .shortfall import Shortfall

logger = logging.getLogger(__name__)
POLL_S = 0.5
READMISSION_MOST_S = 8.0  # the longest pause before the next try of an engine that serves nothing


class EngineControl(Protocol):
    """The monitor's interface to the rollout loop."""

    @property
    def idle(self) -> bool:
        """Whether no caller waits, or dispatch is paused or on hold."""

    @property
    def stopped(self) -> bool:
        """Whether no chunk is dispatched until `resume` or `release`."""

    @property
    def paused(self) -> bool:
        """Whether the driver is paused: its user may have paused the engines too."""

    def set_available(self, engine_id: str, available: bool) -> None:
        """Marks an engine as available or out: chunks go to available engines only."""

    def interrupt(self, engine_id: str, why: str) -> None:
        """Takes every chunk back from an engine and sends it again, elsewhere if possible."""

    def resend_lost(self, engine_id: str) -> None:
        """Sends the chunk again that an engine has lost, if the loop can identify it."""

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """Records the load that an engine reported."""

    def elapsed(self, seconds: float) -> None:
        """Advances the time by `seconds`, counted in polls."""

    def reweighed(self, engine_id: str, version: str) -> None:
        """Records that an engine serves other weights than at its last poll."""


class StallClock:
    """Detects that an engine with work has not moved for `timeout_s`. Pure."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._mark: tuple[Any, ...] | None = None
        self._since = 0.0

    def stalled(self, now: float, inflight: int, mark: tuple[Any, ...]) -> bool:
        """Returns whether the engine is stuck.

        `mark`: counters and returned chunks; it changes whenever the engine makes progress.
        """
        if inflight == 0 or mark != self._mark:
            self._mark, self._since = mark, now
        return now - self._since >= self._timeout_s


class Readmission:
    """The backoff before an engine that is out is tried again. Pure.

    The first try is immediate. The pauses then double while the engine passes its health check but
    serves nothing.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._tries = 0  # since a chunk last brought tokens
        self._at = 0.0  # the time of the last try

    def due(self, now: float, trouble: str) -> bool:
        """Returns whether the next try is due.

        `trouble`: why the engine's newest chunk brought no tokens; empty if it brought some.
        """
        if not trouble:
            self._tries = 0
        pause = self._first_s * float(2**self._tries - 1)
        return now - self._at >= min(pause, READMISSION_MOST_S)

    def tried(self, now: float) -> None:
        """Records that the engine is available again."""
        self._tries, self._at = min(self._tries + 1, 30), now


class Monitor:
    """Polls every engine every `poll_s` (default POLL_S).

    `gives_up` False: requests wait for an engine as long as it takes.
    """

    def __init__(
        self,
        control: EngineControl,
        *,
        stall_timeout_s: float,
        recovery_timeout_s: float,
        gives_up: bool = True,
        poll_s: float | None = None,
    ) -> None:
        self._engines: dict[EngineSlot, Engine] = {}
        self._tasks: asyncio.TaskGroup | None = None  # while it runs
        self._watches: dict[EngineSlot, asyncio.Task[None]] = {}
        self._control = control
        self._stall_timeout_s = stall_timeout_s
        self._recovery_timeout_s = recovery_timeout_s
        self._gives_up = gives_up
        self._poll_s = POLL_S if poll_s is None else poll_s
        self._awake_s = 0.0  # seconds since the start, counted in polls
        self._alive_at = 0.0  # when an engine last served, on the same scale
        self._available: set[EngineSlot] = set()  # at the last poll
        self._served = 0  # chunks that had brought tokens at the last poll
        self._why = ""  # the newest reason why an engine is out
        # The version that an engine must serve to come back; None: any.
        self.weight_version: str | None = None
        # By engine id: why it may not come back before the next weight update.
        self.stale: dict[str, str] = {}
        # By engine id: the start of the server that has the newest weights, if no version names
        # them. A server that was started again has other weights of the same version.
        self.unnamed: dict[str, str | None] = {}

    def add(self, slot: EngineSlot, engine: Engine) -> None:
        """Starts polling one more engine."""
        self._engines[slot] = engine
        if slot.available:
            self._available.add(slot)
        if self._tasks is not None:
            self._watches[slot] = self._tasks.create_task(self._watch(slot, engine))

    def remove(self, engine_id: str) -> None:
        """Stops polling an engine."""
        for slot in [slot for slot in self._engines if slot.engine_id == engine_id]:
            del self._engines[slot]
            self._served -= slot.served
            self.stale.pop(engine_id, None)
            self.unnamed.pop(engine_id, None)
            watch = self._watches.pop(slot, None)
            if watch is not None:
                watch.cancel()

    async def run(self) -> None:
        """Polls until cancelled. Raises RolloutError if no engine serves for too long."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._count())
            for slot, engine in self._engines.items():
                self._watches[slot] = tasks.create_task(self._watch(slot, engine))

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            self._awake_s += self._poll_s
            self._control.elapsed(self._poll_s)
            self._follow_weights()
            self._require_serving()

    async def _watch(self, slot: EngineSlot, engine: Engine) -> None:
        stall, readmission = StallClock(self._stall_timeout_s), Readmission(self._poll_s)
        shortfall = Shortfall()
        progress: tuple[Any, ...] | None = None  # None while the engine does not answer
        version = engine.info.weight_version
        out = not slot.available
        while True:
            await asyncio.sleep(self._poll_s)
            before, progress = progress, None
            why = slot.trouble
            try:
                load = await engine.load()
            except EngineError as error:
                why = self._why = str(error)
                if slot.available:
                    self._control.set_available(slot.engine_id, False)
            else:
                self._control.loaded(slot.engine_id, load)
                progress = load.progress
                if engine.info.weight_version != version:
                    version = engine.info.weight_version
                    self._control.reweighed(slot.engine_id, version)
                if shortfall.seen(slot, load):
                    self._control.resend_lost(slot.engine_id)
            if slot.inflight and before != progress and None not in (before, progress):
                self._alive_at = self._awake_s  # it may be out, but its chunks make progress
            mark = () if progress is None else (slot.completed, *progress)
            working = 0 if self._control.idle else slot.inflight  # a paused engine stands still
            if stall.stalled(self._awake_s, working, mark):
                why = f"engine {slot.engine_id}: no progress for {self._stall_timeout_s:g} s"
                self._why = why
                self._control.set_available(slot.engine_id, False)
                self._control.interrupt(slot.engine_id, self._why)
            elif progress is not None and not slot.available:
                await self._readmit(slot, engine, readmission)
            if slot.available is out:
                out = not out
                self._log(slot.engine_id, why if out else None)

    def _log(self, engine_id: str, why: str | None) -> None:
        """Logs that an engine is out, or (None) back.

        An empty reason: it is leaving. A stale engine was logged as such.
        """
        if why is None:
            logger.info("engine %s serves again", engine_id)
        elif why and engine_id not in self.stale:
            logger.warning("engine %s is out of service: %s", engine_id, why)

    async def _readmit(self, slot: EngineSlot, engine: Engine, readmission: Readmission) -> None:
        self._why = slot.trouble or self._why
        # A health check generates a token: a paused engine would not answer, and an engine without
        # its memory would fail.
        if self._control.paused or not readmission.due(self._awake_s, slot.trouble):
            return
        problem = self.stale.get(slot.engine_id)
        if problem is None:
            problem = await engine.problem(self.weight_version) or self._other_weights(engine)
        if problem is None:
            readmission.tried(self._awake_s)
            self._control.set_available(slot.engine_id, True)
        else:
            self._why = problem

    def _other_weights(self, engine: Engine) -> str | None:
        version, instance = engine.info.weight_version, engine.info.instance
        if self.unnamed.get(engine.info.engine_id, instance) != instance:
            return (
                f"engine {engine.info.engine_id}: it was started again after a weight update that "
                "had no version"
            )
        if self.weight_version is None or version == self.weight_version:
            return None
        return (
            f"engine {engine.info.engine_id}: it serves weights {version}, not "
            f"{self.weight_version}"
        )

    def _follow_weights(self) -> None:
        """Takes over a version that all serving engines report: a trainer has updated them itself.

        Otherwise an engine that fails for a moment could not come back.
        """
        if self.weight_version is None or self._control.stopped:
            return
        versions = {e.info.weight_version for slot, e in self._engines.items() if slot.available}
        if len(versions) == 1:
            (self.weight_version,) = versions

    def _require_serving(self) -> None:
        """Raises RolloutError if no engine has served for too long.

        An engine serves if a chunk brings tokens, or if it stays available from one poll to the
        next. An engine that fails its first chunk after each try does not serve.

        The timeout includes the longest pause between two tries. So a request that fails on every
        engine gives up its own group first.
        """
        available = {slot for slot in self._engines if slot.available}
        served = sum(slot.served for slot in self._engines)
        serves = served > self._served or available & self._available
        self._available, self._served = available, served
        patience_s = self._recovery_timeout_s + min(self._recovery_timeout_s, READMISSION_MOST_S)
        if self._control.idle or serves or not self._gives_up:
            self._alive_at = self._awake_s
        elif self._awake_s - self._alive_at >= patience_s:
            raise RolloutError(
                f"no engine has served for {self._recovery_timeout_s:g} s"
                + (f"; last error: {self._why}" if self._why else "")
            )
