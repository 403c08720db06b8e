"""Releases the engines' memory and takes it back, each tag once: SGLang ends at a second time."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from aiohttp import web

from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import ConfigError, EngineUnavailable, StartedAgain
from seer_sgl.server.errors import BadRequest

from .bodies import Fields, field, read_fields, with_fields
from .control import RELEASED, Answer, Control
from .fleet_calls import call, until_idle
from .replies import DONE, EngineReply, combined, failures

logger = logging.getLogger(__name__)
ALL_TAGS = ("kv_cache", "weights", "cuda_graph")  # SGLang's GPU_MEMORY_ALL_TYPES


class Memory:
    """The handlers of `release_memory_occupation` and `resume_memory_occupation`.

    From the first release until the last tag is back nothing is dispatched.
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    async def release(self, _: web.Request, body: bytes) -> Answer:
        """Releases the memory of some tags on every engine that still has it."""
        control, fields = self._control, read_fields(body)
        tags, engines = _wanted(fields), control.engines()
        await control.holds.begin(RELEASED)
        try:
            await self._forget_restarted(engines)
            done = await asyncio.gather(*(self._release(each, fields, tags) for each in engines))
            control.service.driver.forget_kv()
        finally:
            control.end_release_if_all_back()
        replies = {e.info.engine_id: reply for e, reply in zip(engines, done, strict=True)}
        return combined(replies, "Memory released.", failed=failures(replies))

    async def resume(self, _: web.Request, body: bytes) -> Answer:
        """Takes the memory of some tags back on every engine that has released it."""
        control, fields = self._control, read_fields(body)
        tags = _wanted(fields)
        try:
            engines = control.engines()
            await self._forget_restarted(engines)
            done = await asyncio.gather(*(self._resume(each, fields, tags) for each in engines))
        finally:
            control.end_release_if_all_back()
        replies = {e.info.engine_id: reply for e, reply in zip(engines, done, strict=True)}
        return combined(replies, "Memory resumed.", failed=failures(replies))

    async def _release(
        self, engine: HttpEngine, fields: Fields, wanted: Sequence[str]
    ) -> EngineReply:
        released = self._control.released_by(engine)
        tags = [tag for tag in wanted if tag not in released]
        if not tags:
            return DONE
        if not released:  # else it has been idle since
            idle = await until_idle(engine, pause=self._control.mode)
            if not idle.ok:
                return idle
        reply = await call(engine, "POST", "/release_memory_occupation", _body(fields, tags))
        if reply.ok:
            released.update(tags)
        return reply

    async def _resume(
        self, engine: HttpEngine, fields: Fields, wanted: Sequence[str]
    ) -> EngineReply:
        released = self._control.released_by(engine)
        tags = [tag for tag in wanted if tag in released]
        if not tags:
            return DONE
        reply = await call(engine, "POST", "/resume_memory_occupation", _body(fields, tags))
        if reply.ok:
            released.difference_update(tags)
        elif reply.status is None:  # most likely it has ended; it must not hold the others
            released.clear()
            with contextlib.suppress(ConfigError):  # it has left
                why = "it did not answer when its memory was resumed"
                logger.warning("engine %s is stale: %s", engine.info.engine_id, why)
                self._control.service.driver.mark_stale(engine.info.engine_id, why)
        return reply

    async def _forget_restarted(self, engines: Sequence[HttpEngine]) -> None:
        """Forgets the tags of engines that were started again: they have all their memory."""
        for engine in engines:
            if self._control.released_by(engine):
                try:
                    await engine.refresh()
                except StartedAgain:
                    self._control.released_by(engine).clear()
                except EngineUnavailable:
                    continue


def _wanted(fields: Fields) -> Sequence[str]:
    """Returns the tags of a call; without any, all of them, as in SGLang.

    Raises BadRequest for other ones: SGLang answers 200, and the fleet would wait for their return.
    """
    tags: list[str] | None = field(fields, "tags", list[str] | None, None)  # type: ignore[arg-type]
    for tag in tags or ():
        if tag not in ALL_TAGS:
            raise BadRequest(f"tags: {tag[:80]!r} is none of {', '.join(ALL_TAGS)}")
    return list(dict.fromkeys(tags)) if tags else ALL_TAGS


def _body(fields: Fields, tags: Sequence[str]) -> bytes:
    return with_fields(fields, tags=tags)
