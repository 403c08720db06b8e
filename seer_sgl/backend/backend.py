"""`Backend`: a fleet and its driver as one object.

Engines join and leave, their weights change, and their memory is released, while rollouts run: a
response that was begun continues afterwards from the tokens that it has.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from seer_sgl.driver.driver import Driver
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, RolloutError, SeerError, StateError
from seer_sgl.timing import DEFAULT, Timing

from . import groups, memory, pausing, weights
from .bodies import Fields
from .calls import call_all
from .groups import DEFAULT_GROUP, TrainerGroup
from .holds import Holds
from .memory import ALL_TAGS
from .pausing import PauseMode
from .replies import CallResult, EnginesFailed
from .state import Before, FleetState
from .weights import WeightUpdate

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Raises ConfigError if a new engine does not fit; returns what to do once it is in the fleet.
Admit = Callable[[HttpEngine], Awaitable[Callable[[], None]]]
CLOSED = "the rollout is closed"


class Backend:
    """The engines of an open rollout, and what may change in them while it runs.

    Calls that change the engines run one at a time, and to their end also if their caller is
    cancelled: a half-done call would leave the engines in different states. They return what each
    engine replied. They raise EnginesFailed if no engine did what the call asked for, or if one
    refused it (`flush_cache` and `call_each` leave that to their caller); InputError for a wrong
    argument, StateError if another change is in the way, and RolloutError if there is no engine,
    if none has all of an update, or the rollout is closed. `seer_sgl.backend.calls.limited` limits
    their time.
    """

    def __init__(
        self, fleet: Fleet, driver: Driver, admit: Admit, timing: Timing = DEFAULT
    ) -> None:
        self.fleet = fleet
        self.driver = driver
        self.state = FleetState(fleet, driver, timing)
        self._admit = admit
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._leaving: dict[str, asyncio.Task[None]] = {}  # by engine id

    @property
    def holds(self) -> Holds:
        """The reasons why nothing is dispatched."""
        return self.state.holds

    @property
    def leaving(self) -> Collection[str]:
        """The ids of the engines that are leaving."""
        return self._leaving.keys()

    async def join(self, url: str) -> EngineInfo:
        """Adds an engine that runs at `url`, unless it is there; returns once it serves.

        Raises ConfigError if it does not fit, EngineStartError if it does not answer, and
        StateError while an update is open, memory is released, or while it is leaving.
        """
        url = url.rstrip("/")

        async def joined() -> EngineInfo:
            for info in (engine.info for engine in self.fleet.engines):
                if info.url == url and info.engine_id in self._leaving:
                    raise StateError(f"engine {info.engine_id} ({url}) is leaving the fleet")
                if info.url == url:
                    return info
            return await self._added(lambda: self.fleet.join(url))

        return await self._changed(joined)

    async def start(self) -> EngineInfo:
        """Starts one more engine here, and returns once it serves. Raises like `join`.

        It gets the weights of the last update from disk. ConfigError: they came by other means.
        """
        return await self._changed(lambda: self._added(self.fleet.start_engine, own=True))

    def drain(self, engine_id: str) -> "asyncio.Future[None]":
        """Begins to remove an engine; the result comes when the engine has left.

        The other data-parallel ranks of its server leave too. Divided requests move on with the
        tokens they have, others end there. Processes that were started here end. Raises ConfigError
        if there is no such engine.
        """
        if engine_id not in self._leaving:
            engine_ids = [engine.info.engine_id for engine in self.fleet.of_server(engine_id)]
            task = asyncio.create_task(self._drained(engine_ids))
            self._leaving |= dict.fromkeys(engine_ids, task)
        return asyncio.shield(self._leaving[engine_id])

    async def update_weights(
        self, update: WeightUpdate, *, before: Before | None = None
    ) -> CallResult:
        """Gives the engines new weights; nothing is dispatched meanwhile.

        An engine that fails is stale: it serves nothing until a later update. `before` is awaited
        before the engines are held, and must not call the backend. Raises StateError if a process
        group is incomplete.
        """
        return await self._call(lambda: weights.update(self.state, update, before))

    async def begin_update(self, fields: Fields | None = None) -> CallResult:
        """Opens an update of several `update_weights`; nothing is dispatched before `end_update`.

        fields: SGLang's, of `begin_weight_update`.
        """
        return await self._call(lambda: weights.begin(self.state, fields or {}))

    async def end_update(self, fields: Fields | None = None) -> CallResult:
        """Ends the update that `begin_update` has opened; the engines serve the new weights."""
        return await self._call(lambda: weights.end(self.state, fields or {}))

    async def adopt_weights(self, version: str | None) -> None:
        """Lets the engines serve weights that were loaded into them by other means.

        version: which all of them report now. An engine that reports another one, or does not
        answer, is stale. None: the weights have changed and their version has not. Raises
        RolloutError if all engines are stale, StateError between `begin_update` and `end_update`.
        """
        await self._changed(lambda: weights.adopt(self.state, version))

    async def rename_weights(
        self,
        version: str,
        fields: Fields | None = None,
        *,
        aborts: bool | None = False,
        before: Before | None = None,
    ) -> CallResult:
        """Gives the weights of every engine another version.

        aborts: responses in progress end, by `before` and on the engines; None: unless something
        holds generation.
        """
        return await self._call(
            lambda: weights.rename(self.state, version, fields or {}, aborts, before)
        )

    async def init_group(self, group: TrainerGroup) -> CallResult:
        """Makes the ranks of all engines join a process group of the trainer."""
        return await self._call(lambda: groups.init_group(self.state, group))

    async def destroy_group(
        self, name: str = DEFAULT_GROUP, fields: Fields | None = None
    ) -> CallResult:
        """Makes the ranks of all engines leave a process group."""
        return await self._call(lambda: groups.destroy_group(self.state, name, fields or {}))

    async def release_memory(
        self, tags: Sequence[str] = ALL_TAGS, fields: Fields | None = None
    ) -> CallResult:
        """Releases memory of the engines; nothing is dispatched until all of it is back.

        tags: of SGLang's `kv_cache`, `weights`, `cuda_graph`.
        """
        return await self._call(lambda: memory.release(self.state, tags, fields or {}))

    async def resume_memory(
        self, tags: Sequence[str] = ALL_TAGS, fields: Fields | None = None
    ) -> CallResult:
        """Takes released memory back."""
        return await self._call(lambda: memory.resume(self.state, tags, fields or {}))

    async def pause(
        self,
        mode: PauseMode = "retract",
        fields: Fields | None = None,
        *,
        before: Before | None = None,
    ) -> CallResult:
        """Stops generation until `resume`; returns when no chunk is in flight.

        Divided responses keep their tokens. mode: SGLang's, for requests that the engines run
        undivided. `before` is awaited meanwhile.
        """
        return await self._call(lambda: pausing.pause(self.state, mode, fields or {}, before))

    async def resume(self, fields: Fields | None = None) -> CallResult:
        """Ends the pause."""
        return await self._call(lambda: pausing.resume(self.state, fields or {}))

    async def flush_cache(self, path: str = "/flush_cache") -> CallResult:
        """Drops all cached KV of the engines; an engine refuses while requests run there."""

        async def flushed() -> CallResult:
            replies = await call_all(self.state.engines(), "POST", path)
            result = CallResult.of(replies)
            if result.succeeded:
                self.driver.forget_kv()
            return result

        return await self.to_the_end(flushed())

    async def call_each(self, method: str, path: str, body: bytes | None = None) -> CallResult:
        """Sends a call of SGLang that changes no state of ours to every engine."""
        replies = await self.to_the_end(call_all(self.state.engines(), method, path, body))
        return CallResult.of(replies)

    async def close(self) -> None:
        """Ends the calls and the drains in progress."""
        self._closed = True
        self.state.holds.close()
        tasks = [*self._tasks, *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, work: Callable[[], Awaitable[CallResult]]) -> CallResult:
        result = await self._changed(work)
        if result.failed:
            raise EnginesFailed(result)
        return result

    async def _changed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs a change after those before it, and to its end."""

        async def alone() -> T:
            async with self._lock:
                return await work()

        return await self.to_the_end(alone())

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something to its end, also if its caller is cancelled.

        Raises RolloutError if the backend is closed meanwhile.
        """
        if self._closed:
            work.close()
            raise RolloutError(CLOSED)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise RolloutError(CLOSED) from None
            task.add_done_callback(_log_defect)  # nobody waits for it any more
            raise

    async def _added(
        self, start: Callable[[], Awaitable[Sequence[HttpEngine]]], *, own: bool = False
    ) -> EngineInfo:
        """Adds the engines of a server, and returns the first.

        `own`: it was started here, so that it may be given the weights.
        """
        if self.state.changing:
            raise StateError("the weights or the memory of the engines are being changed")
        engines, added = await start(), list[str]()
        try:
            for engine in engines:
                if own:
                    await self._restore(engine)
                accepted = await self._admit(engine)
                if engine.info.engine_id in self._leaving:  # it was drained meanwhile
                    raise StateError(f"engine {engine.info.engine_id} is leaving the fleet")
                self.driver.add_engine(engine)
                added.append(engine.info.engine_id)
                accepted()
        except BaseException:
            try:
                for engine_id in added:
                    await self.driver.remove_engine(engine_id)
            finally:
                await self.fleet.stop_engine(engines[0].info.engine_id)
            raise
        return engines[0].info

    async def _restore(self, engine: HttpEngine) -> None:
        """Gives an engine the weights of the others. Raises ConfigError if they are on no disk."""
        infos = self.driver.engines
        current = next((info for info in infos if self.driver.available(info.engine_id)), None)
        if current is None:
            return
        named = {current.weights, engine.info.weights} - {None}  # an update may keep the version
        if len(named) > 1 or current.weight_version != engine.info.weight_version:
            why = await engine.restore(current)
            if why is not None:
                raise ConfigError(why)

    async def _drained(self, engine_ids: Sequence[str]) -> None:
        try:
            await asyncio.gather(*map(self._removed, engine_ids))
            async with self._lock:  # an update that they take part in ends before
                with contextlib.suppress(ConfigError):
                    await self.fleet.stop_engine(engine_ids[0])
                self.state.end_release_if_all_back()
        finally:
            for engine_id in engine_ids:
                del self._leaving[engine_id]

    async def _removed(self, engine_id: str) -> None:
        with contextlib.suppress(ConfigError):  # another caller has removed it
            await self.driver.remove_engine(engine_id)


def _log_defect(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, SeerError):
        logger.error("a change of the engines failed: %r", error)
