"""SGLang servers on the nodes of a Ray cluster: an actor per engine, in a placement group."""

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from typing_extensions import override

from seer_sgl.errors import ConfigError, EngineDelayed, EngineStartError, first_line

from .launcher import EngineStart, Launcher
from .ray_actor import Actor
from .ray_host import EngineHost
from .server import ServerPlan

logger = logging.getLogger(__name__)
PLACED = "CREATED"  # the state of a placement group whose resources are reserved


class RayLauncher(Launcher):
    """Starts servers where Ray has room. `resources`: what Ray reserves for each.

    `room_s`: an engine that Ray has not placed by then has no room for now.

    The actor of an engine is never restarted by Ray. Its end is the end of its server, and the
    supervisor restarts the engine in a new place.
    """

    def __init__(
        self, plan: ServerPlan, resources: Mapping[str, float], log_dir: Path, room_s: float
    ) -> None:
        self._room_s = room_s
        self._plan = plan
        self._resources = dict(resources)
        self._log_dir = log_dir
        self._wanted: set[str] = set()  # engine ids
        self._rooms: dict[str, _Room] = {}  # by engine id
        self._delays: dict[str, str] = {}  # by engine id
        self._starts: Counter[str] = Counter()  # by engine id
        self._asking = asyncio.Lock()

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if url is not None:
            raise ConfigError(f"engines.launch: ray cannot join a running engine ({url})")
        self._wanted.add(engine_id)
        return await self._started(engine_id)

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        await self._leave(engine_id)
        if engine_id not in self._wanted:
            raise EngineStartError(f"engine {engine_id} was stopped")
        return await self._started(engine_id, kv_tokens)

    @override
    def delay(self, engine_id: str) -> str | None:
        return self._delays.get(engine_id)

    @override
    async def stop(self, engine_id: str) -> None:
        self._wanted.discard(engine_id)
        await self._leave(engine_id)

    @override
    async def aclose(self) -> None:
        self._wanted.clear()
        await asyncio.gather(*map(self._leave, list(self._rooms)))

    async def _started(self, engine_id: str, kv_tokens: int | None = None) -> EngineStart:
        """Starts a server. Without `kv_tokens` it is the first one of the engine."""
        number, self._starts[engine_id] = self._starts[engine_id], self._starts[engine_id] + 1
        log = self._log_dir / (f"{engine_id}.{number}.log" if number else f"{engine_id}.log")
        instance, timeout_s = uuid.uuid4().hex, self._start_limit_s()
        room = self._rooms[engine_id] = await self._new_room(engine_id)
        if engine_id not in self._wanted:
            await self._leave(engine_id)
            raise EngineStartError(f"engine {engine_id} was stopped before it was placed")
        starting = asyncio.create_task(room.actor.start(log, self._plan, instance, kv_tokens))
        try:
            await self._placed(engine_id, room, starting, first=kv_tokens is None)
            await starting
        except BaseException as error:
            starting.cancel()
            await asyncio.wait({starting})
            await self._leave(engine_id)
            if not isinstance(error, RayError):
                raise
            raise EngineDelayed(engine_id, f"its actor ended: {first_line(error)}") from error
        finally:
            self._delays.pop(engine_id, None)
        if engine_id not in self._wanted:  # `stop` or `aclose` was called meanwhile
            await room.leave()
            raise EngineStartError(f"engine {engine_id} was stopped while it was starting")
        hosted, process = room.actor.hosted, room.actor.process
        assert hosted is not None
        assert process is not None
        logger.info("engine %s: process %d on %s", engine_id, hosted.pid, hosted.host)
        url = f"http://{hosted.host}:{hosted.port}"
        return EngineStart(engine_id, url, timeout_s, process, instance)

    async def _new_room(self, engine_id: str) -> "_Room":
        """Asks Ray for the resources of a server. Raises EngineDelayed if Ray itself fails.

        In a thread, because Ray blocks while its head is away. One at a time, because there are
        few threads, and chunks of other engines need them.
        """
        async with self._asking:
            asking = asyncio.create_task(asyncio.to_thread(_Room, self._resources))
            try:
                return await asyncio.shield(asking)
            except RayError as error:
                why = f"Ray gives it no place: {first_line(error)}"
                raise EngineDelayed(engine_id, why) from error
            except asyncio.CancelledError:
                await asyncio.wait({asking})
                if asking.exception() is None:
                    await asking.result().leave()
                raise

    async def _placed(
        self, engine_id: str, room: "_Room", starting: asyncio.Task[None], *, first: bool
    ) -> None:
        """Waits until the cluster has room for an engine.

        At its first start it waits for `room_s` if another engine has a place, and else for
        `start_timeout_s`; then raises EngineDelayed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._start_limit_s()
        while True:
            done, _ = await asyncio.wait({starting}, timeout=self._room_s)
            if done or await room.reserved():
                return
            why = f"the cluster has no room for {_listed(self._resources)}"
            others = any(other.actor.hosted is not None for other in self._rooms.values())
            if first and (others or loop.time() > deadline):
                raise EngineDelayed(engine_id, why)
            if engine_id not in self._delays:
                logger.warning("engine %s waits: %s", engine_id, why)
            self._delays[engine_id] = why

    def _start_limit_s(self) -> float:
        return self._plan.engines.start_limit_s("GPU" in self._resources)

    async def _leave(self, engine_id: str) -> None:
        room = self._rooms.get(engine_id)
        if room is None:
            return
        await room.leave()
        if self._rooms.get(engine_id) is room:  # only now: a cancelled call is repeated by `aclose`
            del self._rooms[engine_id]


class _Room:
    """The resources of one server on a node of the cluster, reserved or asked for.

    The constructor raises RayError if Ray itself fails.
    """

    def __init__(self, resources: Mapping[str, float]) -> None:
        named = {**resources}
        self._group: Any = placement_group([dict(resources)], strategy="PACK")
        try:
            self.actor = Actor(
                EngineHost,
                num_cpus=named.pop("CPU", 0),
                num_gpus=named.pop("GPU", 0),
                resources=named,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, 0),
            )
        except RayError:
            with contextlib.suppress(RayError):
                remove_placement_group(self._group)
            raise

    async def reserved(self) -> bool:
        table = await asyncio.to_thread(placement_group_table, self._group)
        return bool(table["state"] == PLACED)

    async def leave(self) -> None:
        """Ends the server and its actor, and frees the resources."""
        try:
            await self.actor.end()
        finally:
            with contextlib.suppress(RayError):
                await asyncio.to_thread(remove_placement_group, self._group)


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
