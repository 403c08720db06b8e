"""Releases and resumes engine memory. No tag is sent twice, because SGLang crashes on that."""

import contextlib
import logging
from collections.abc import Sequence

from seer_sgl.engine.client import HttpEngine
from seer_sgl.errors import (
    ConfigError,
    EngineRestarted,
    EngineUnavailable,
    InputError,
    StateError,
)

from .bodies import Fields, body_of
from .calls import call, on_each, server_infos, until_idle
from .replies import DONE, CallResult, EngineReply
from .state import RELEASED, FleetState

logger = logging.getLogger(__name__)
ALL_TAGS = ("kv_cache", "weights", "cuda_graph")  # SGLang's GPU_MEMORY_ALL_TYPES


async def release(state: FleetState, tags: Sequence[str], fields: Fields) -> CallResult:
    """Releases the memory of some tags on every engine that still has it."""
    tags, engines = _known(tags), state.engines()
    await state.holds.begin(RELEASED)
    try:
        await _forget_restarted(state, engines)
        replies = await on_each(engines, lambda engine: _release(state, engine, tags, fields))
        state.driver.forget_kv()
    finally:
        state.end_release_if_all_back()
    return CallResult.of(replies)


async def resume(state: FleetState, tags: Sequence[str], fields: Fields) -> CallResult:
    """Takes the memory of some tags back on every engine that has released it."""
    tags = _known(tags)
    try:
        engines = state.engines()
        await _forget_restarted(state, engines)
        replies = await on_each(engines, lambda engine: _resume(state, engine, tags, fields))
        why = "it did not answer when its memory was resumed"
        for name in [name for name, reply in replies.items() if reply.status is None]:
            logger.warning("engine %s is stale: %s", name, why)
            with contextlib.suppress(ConfigError):  # it has left
                state.driver.mark_stale(name, why)
    finally:
        state.end_release_if_all_back()
    return CallResult.of(replies)


async def require_weights(state: FleetState, engines: Sequence[HttpEngine]) -> None:
    """Raises StateError for an engine whose weights are released: SGLang would fail at their first
    use, and end. Without its memory saver nothing is released."""
    lacking = state.lacking("weights")
    asked = [engine for engine in engines if engine.info.server_id in lacking]
    # One that does not answer does nothing now.
    for name, info in (await server_infos(asked, state.timing.control_timeout_s)).items():
        if info.get("enable_memory_saver"):
            raise StateError(
                f"engine {name} has released its weights; call resume_memory_occupation first"
            )


async def _release(
    state: FleetState, engine: HttpEngine, wanted: Sequence[str], fields: Fields
) -> EngineReply:
    released = state.released_by(engine)
    tags = [tag for tag in wanted if tag not in released]
    if not tags:
        return DONE
    if not released:  # else it has been idle since
        idle = await until_idle(engine, state.timing, pause=state.mode)
        if not idle.ok:
            return idle
    body = body_of(fields, tags=tags)
    reply = await call(engine, "POST", "/release_memory_occupation", body)
    if reply.ok or reply.late:  # a late one may release it any time: nothing is sent until `resume`
        released.update(tags)
    return reply


async def _resume(
    state: FleetState, engine: HttpEngine, wanted: Sequence[str], fields: Fields
) -> EngineReply:
    released = state.released_by(engine)
    tags = [tag for tag in wanted if tag in released]
    if not tags:
        return DONE
    body = body_of(fields, tags=tags)
    reply = await call(engine, "POST", "/resume_memory_occupation", body)
    if reply.ok:
        released.difference_update(tags)
    elif reply.status is None:  # most likely it has ended; it must not hold the others
        released.clear()
    if not released and (continues := state.to_continue.pop(engine.info.server_id, None)):
        within_s = state.timing.quick_call_s
        await call(engine, "POST", "/continue_generation", continues, within_s)
    return reply


async def _forget_restarted(state: FleetState, engines: Sequence[HttpEngine]) -> None:
    """Forgets the tags of engines that were restarted: they have all their memory."""
    for engine in engines:
        if state.released_by(engine):
            try:
                await engine.refresh()
            except EngineRestarted:
                state.released_by(engine).clear()
            except EngineUnavailable:
                continue


def _known(tags: Sequence[str]) -> Sequence[str]:
    """Returns the tags once each. Raises InputError for other ones than SGLang's.

    SGLang answers 200 to those, and the fleet would wait for their return.
    """
    for tag in tags:
        if tag not in ALL_TAGS:
            raise InputError(f"tags: {tag[:80]!r} is none of {', '.join(ALL_TAGS)}")
    return list(dict.fromkeys(tags))
