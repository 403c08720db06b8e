"""`Driver`: rolls groups out on a fleet, for any number of callers at once.

async with Driver.over(fleet, settings) as driver:
    async for group in driver.submit(groups):
        ...
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, Self

import msgspec

from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, RolloutError, first_error
from seer_sgl.link.messages import Rates
from seer_sgl.types import Group, OnFailure

from .build_scheduler import build_scheduler, new_slot
from .checks import LengthLimits, differences, same_server
from .conversations import SessionCloser
from .draft_groups import DraftKeeper
from .engine import Engine, EngineFleet
from .flights import Clock
from .health import State
from .loop import RolloutLoop
from .monitor import Monitor
from .observer import Observer
from .pool_pages import PageReleaser
from .run import Run
from .samples import SampleMaker
from .settings import Settings
from .state import EngineState
from .stop_strings import StopStrings

logger = logging.getLogger(__name__)


class Driver:
    """One scheduler, one loop and one monitor for a fleet. `Driver.over` creates it."""

    def __init__(self, fleet: EngineFleet, settings: Settings, clock: Clock) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._scheduler = build_scheduler(settings)
        self._loop = RolloutLoop(
            self._scheduler, clock, StopStrings(settings.tokenizer).amend, settings.timing
        )
        self._monitor = Monitor(self._loop, settings)
        self._numbers = itertools.count()
        self._pauses = 0  # pauses without a resume yet

    @classmethod
    @contextlib.asynccontextmanager
    async def over(
        cls, fleet: EngineFleet, settings: Settings, clock: Clock = time.monotonic
    ) -> AsyncIterator[Self]:
        """Opens a driver of the fleet's engines; an async context manager.

        On exit it aborts all chunks in flight and leaves the engines running.
        """
        driver = cls(fleet, settings, clock)
        for engine in fleet.engines:
            driver._join(engine)
        fleet.link.on_stored = driver._loop.stored
        fleet.link.on_rates = driver._measured
        work = asyncio.create_task(driver._work())
        work.add_done_callback(lambda _: driver._end(RolloutError("the driver was closed")))
        try:
            yield driver
        finally:
            try:
                await driver._loop.settle()
            finally:
                work.cancel()
                await asyncio.wait({work})

    @property
    def engines(self) -> list[EngineInfo]:
        """The descriptions of the engines."""
        return [engine.info for engine in self._loop.engines.values()]

    @property
    def limits(self) -> LengthLimits:
        """The request lengths that every engine accepts. Raises RolloutError without engines."""
        if not self._loop.engines:
            raise RolloutError("the fleet has no engine")
        return LengthLimits(self.engines)

    @property
    def stands_still(self) -> bool:
        """Whether callers wait although no chunk is in flight and no retry is due."""
        loop = self._loop
        return bool(loop.by_group) and not loop.flights and self._scheduler.wake_at is None

    def check(self) -> list[str]:
        """Returns what an idle driver still holds although it must not: a defect. Empty if all is
        well."""
        breaches = self._scheduler.check()
        if self._loop.flights:
            breaches.append(f"{len(self._loop.flights)} chunks are in flight")
        if self._loop.by_group:
            breaches.append(f"{len(self._loop.by_group)} groups are unfinished")
        return breaches

    @property
    def paused(self) -> bool:
        """Whether no chunk is sent."""
        return self._loop.paused

    def states(self) -> list[EngineState]:
        """Returns the state of each engine, in order of joining."""
        return [
            EngineState.of(slot, self._monitor.health(slot.engine_id))
            for slot in self._scheduler.engines
        ]

    def observe(self, observer: Observer) -> None:
        """Adds an observer of all runs, present and later ones."""
        self._loop.standing.append(observer)

    def submit(
        self,
        groups: Sequence[Group],
        observers: Sequence[Observer] = (),
        *,
        rollout_id: str = "",
        started_at: float = 0.0,
        caller: str | None = None,
        on_failure: OnFailure = "group",
    ) -> Run:
        """Starts the rollout of some groups and returns an iterator of finished groups.

        `rollout_id` goes into the samples. `started_at` is the zero of their times, on the
        driver's clock. All runs of one `caller` have one share of the fleet. `on_failure`: what is
        given up when a request fails for good: the request alone, or its group.

        Raises RolloutError if the driver has ended, ConfigError for stop strings without a
        tokenizer, and ValueError if the uid of a group or a request is already in use.
        """
        self._raise_if_ended()
        if self._settings.tokenizer is None and any(group.sampling.stops() for group in groups):
            raise ConfigError("sampling.stop: stop strings need a tokenizer: set model.path")
        run = self.open_run(
            observers,
            rollout_id=rollout_id,
            started_at=started_at,
            caller=caller,
            on_failure=on_failure,
        )
        try:
            run.add(groups)
        except ValueError:
            run.close()
            raise
        run.complete()
        return run

    def open_run(
        self,
        observers: Sequence[Observer] = (),
        *,
        rollout_id: str = "",
        started_at: float = 0.0,
        caller: str | None = None,
        on_failure: OnFailure = "group",
        texts: bool = True,
    ) -> Run:
        """Returns a run without groups, to which groups are added while it is open.

        It stays open until `Run.complete` or `Run.close`. Its groups must have no stop strings if
        the driver has no tokenizer. `texts` False: its samples have no text. Raises RolloutError if
        the driver has ended.
        """
        self._raise_if_ended()
        caller = f"run {next(self._numbers)}" if caller is None else caller
        tokenizer = self._settings.tokenizer if texts else None
        maker = SampleMaker(rollout_id, started_at, tokenizer)
        own = [*self._own_observers(), *observers]
        for state in self.states():
            for observer in own:
                observer.health(state.engine_id, state.state, state.why, self._clock())
        return Run(self._loop, maker, own, caller, on_failure)

    async def pause(self) -> None:
        """Stops dispatching, and returns when no chunk is in flight, except passthrough chunks.

        Each `pause` needs one `resume`. Passthrough chunks run on; others in flight end early, and
        their tokens are kept if the request can continue from them. Raises RolloutError if the
        driver ends meanwhile.
        """
        self._pauses += 1
        self._loop.paused = True
        await self._loop.until_landed(
            lambda chunk: chunk.request.passthrough is None, "the driver is paused", restart=True
        )

    def resume(self) -> None:
        """Ends one pause. The driver dispatches again after the last one."""
        self._pauses = max(0, self._pauses - 1)
        self._loop.paused = self._pauses > 0
        self._loop.wake()

    def adopt_weights(self, version: str | None) -> None:
        """Records that every engine that is not stale serves new weights. KV of older weights is
        forgotten.

        Call it while the driver is paused. version: which every one of them reports; None: the
        weights have changed and their version has not. Then an engine that is restarted, or
        that joins, could have the older weights: it stays out until the next update.
        """
        self._raise_if_ended()
        if version is not None:
            self._monitor.weight_version = version
        stale = self.stale
        self._monitor.version_unknown = {
            info.engine_id: info.instance
            for info in self.engines
            if version is None and info.engine_id not in stale
        }
        self._monitor.updates += 1
        self._scheduler.forget_kv()

    def forget_kv(self) -> None:
        """Discards all knowledge of stored KV: the engines no longer have it."""
        self._scheduler.forget_kv()

    def mark_stale(self, engine_id: str, why: str) -> None:
        """Takes an engine out until `clear_stale`: it has missed a weight update.

        Its chunks in flight end as they end. Raises ConfigError if it is not in the fleet.
        """
        self._require(engine_id)
        self._monitor.mark_stale(engine_id, why)

    def clear_stale(self, engine_id: str) -> None:
        """Lets an engine come back that was marked stale; the monitor checks it first."""
        self._monitor.clear_stale(engine_id)

    @property
    def stale(self) -> Mapping[str, str]:
        """The engines that have missed a weight update: the reason by engine id."""
        return self._monitor.stale

    def available(self, engine_id: str) -> bool:
        """Returns whether the driver sends chunks to an engine."""
        return self._scheduler.available(engine_id)

    def in_flight(self, engine_id: str) -> int:
        """Returns the number of chunks that an engine has now."""
        return sum(1 for _ in self._loop.flights.on(engine_id))

    def _require(self, engine_id: str) -> None:
        if engine_id not in self._loop.engines:
            raise ConfigError(f"engine {engine_id} is not in the fleet")

    def add_engine(self, engine: Engine) -> None:
        """Adds an engine, which receives chunks at once if its server runs.

        Raises ConfigError if it does not fit the other engines or is already in the fleet.
        """
        self._raise_if_ended()
        self._check_fit(engine.info)
        self._join(engine)

    async def remove_engine(self, engine_id: str) -> None:
        """Removes an engine, and returns when none of this driver's chunks is in flight there.

        Divided chunks end early with the tokens they have; undivided ones run to their end. Raises
        ConfigError if the engine is not in the fleet.
        """
        self._require(engine_id)
        await self._loop.remove_engine(engine_id)
        self._monitor.remove(engine_id)

    def _join(self, engine: Engine) -> None:
        slot = new_slot(self._settings.scheduling, engine.info)
        self._loop.add_engine(slot, engine)
        self._loop.health_changed(slot.engine_id, State.HEALTHY, "")
        self._monitor.add(slot, engine)

    def _check_fit(self, info: EngineInfo) -> None:
        present = self.engines
        if info.engine_id in {other.engine_id for other in present}:
            raise ConfigError(f"engine {info.engine_id} is already in the fleet")
        for other in present:
            if same_server(info, other):
                raise ConfigError(f"{info.url} is engine {other.engine_id} ({other.url})")
        version = self._monitor.weight_version
        if version is not None and info.weight_version != version:
            raise ConfigError(
                f"engine {info.engine_id}: it serves weights {info.weight_version}, not {version}"
            )
        if not present:
            return
        stale = self.stale
        if self._monitor.version_unknown and info.weights not in {
            other.weights
            for other in present
            if other.weights is not None and other.engine_id not in stale
        }:
            raise ConfigError(
                f"engine {info.engine_id}: the weights were updated without a version, so it is "
                "unknown whether it has them"
            )
        if version is not None:  # the description of an engine that is out may be older
            present = [msgspec.structs.replace(other, weight_version=version) for other in present]
        problem = differences([*present, info])
        if problem is not None:
            raise ConfigError(problem)
        shortest = self.limits.longest_prompt
        if LengthLimits([info]).longest_prompt < shortest:
            raise ConfigError(
                f"engine {info.engine_id}: it accepts {info.max_request_len} tokens per request, "
                f"the fleet {shortest + 1}"
            )

    def _raise_if_ended(self) -> None:
        if self._loop.error is not None:
            raise self._loop.error

    def _own_observers(self) -> list[Observer]:
        engines = self._loop.engines
        observers: list[Observer] = [
            PageReleaser(self._fleet.link, engines),
            SessionCloser(engines),
        ]
        if self._fleet.drafts is not None:
            observers.append(DraftKeeper(self._fleet.drafts, self._settings.history))
        return observers

    def _measured(self, rates: Rates) -> None:
        if rates.prefill_tokens:
            self._settings.costs.observe_prefill(rates.prefill_tokens, rates.prefill_s)
        if rates.fetch_tokens:
            self._settings.costs.observe_fetch(rates.fetch_tokens, rates.fetch_s)

    async def _work(self) -> None:
        """Runs the loop and the monitor, until cancelled or until the monitor raises."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_endless(self._loop.run()))
                tasks.create_task(_endless(self._monitor.run()))
        except* RolloutError as failures:
            error = first_error(failures)
            assert isinstance(error, RolloutError)
            self._end(error)
        except* Exception as defects:
            logger.exception("the driver failed")
            failed = RolloutError(f"the driver failed: {first_error(defects)!r}")
            failed.__cause__ = defects
            self._end(failed)

    def _end(self, error: RolloutError) -> None:
        if self._loop.error is None:
            self._loop.fail(error)


async def _endless(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that ends only when it is cancelled from outside.

    An observer that raises CancelledError, for example from a future, would end it in silence.
    """
    try:
        await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("an observer raised CancelledError") from error
