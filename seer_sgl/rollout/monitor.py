"""Watches the engines: how loaded they are, which are stuck, which came back.

Generation has no read timeout, so a stuck engine shows only in its own figures: chunks in flight
and nothing in `/v1/loads` moving for `stall_timeout_s`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from seer_sgl.engine.protocol import Engine
from seer_sgl.errors import EngineError, RolloutError
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.types import EngineLoad

POLL_S = 0.5


class Reins(Protocol):
    """What the monitor may do to the rollout loop."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""

    def set_available(self, engine_id: str, available: bool) -> None:
        """Stop or resume sending chunks to an engine."""

    def interrupt(self, engine_id: str, why: str) -> None:
        """Take every chunk away from an engine."""

    def loaded(self, engine_id: str, load: EngineLoad) -> None:
        """Pass a load figure on."""


class StallClock:
    """Tells when an engine with work has not moved for `timeout_s`. Pure."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._mark: tuple[Any, ...] | None = None
        self._since = 0.0

    def stalled(self, now: float, inflight: int, mark: tuple[Any, ...]) -> bool:
        """`mark` changes whenever the engine works (counters, returned chunks)."""
        if inflight == 0 or mark != self._mark:
            self._mark, self._since = mark, now
        return now - self._since >= self._timeout_s


class Monitor:
    """Polls every engine every `poll_s` (default POLL_S). `clock` gives seconds."""

    def __init__(
        self,
        engines: Iterable[tuple[EngineSlot, Engine]],
        reins: Reins,
        clock: Callable[[], float],
        *,
        stall_timeout_s: float,
        recovery_timeout_s: float,
        poll_s: float | None = None,
    ) -> None:
        self._engines = list(engines)
        self._reins = reins
        self._clock = clock
        self._stall_timeout_s = stall_timeout_s
        self._recovery_timeout_s = recovery_timeout_s
        self._poll_s = poll_s
        self._alive_at = clock()  # when an engine was last known to serve

    async def run(self) -> None:
        """Watch for ever. Raises RolloutError when a rollout waits too long for any engine."""
        async with asyncio.TaskGroup() as tasks:
            for slot, engine in self._engines:
                tasks.create_task(self._watch(slot, engine))

    async def _watch(self, slot: EngineSlot, engine: Engine) -> None:
        stall = StallClock(self._stall_timeout_s)
        why = ""
        while True:
            await asyncio.sleep(POLL_S if self._poll_s is None else self._poll_s)
            mark: tuple[Any, ...] | None = None  # stays None while the engine does not answer
            try:
                load = await engine.load()
            except EngineError as error:
                why = str(error)
                if slot.available:
                    self._reins.set_available(slot.engine_id, False)
            else:
                self._reins.loaded(slot.engine_id, load)
                mark = (slot.completed, *load.progress)
            if stall.stalled(self._clock(), slot.inflight, mark or ()):
                why = f"engine {slot.engine_id}: no progress for {self._stall_timeout_s:g} s"
                self._reins.set_available(slot.engine_id, False)
                self._reins.interrupt(slot.engine_id, why)
            elif mark is not None and not slot.available:
                problem = await engine.problem()
                if problem is None:
                    self._reins.set_available(slot.engine_id, True)
                why = problem or why
            self._expect_life(why)

    def _expect_life(self, why: str) -> None:
        if self._reins.idle or any(slot.available for slot, _ in self._engines):
            self._alive_at = self._clock()
        elif self._clock() - self._alive_at >= self._recovery_timeout_s:
            raise RolloutError(
                f"no engine has served for {self._recovery_timeout_s:g} s"
                + (f"; the last word: {why}" if why else "")
            )
