"""Pause and continue: what happens to the responses in progress."""

import asyncio
from typing import Literal

from .bodies import Fields, body_of
from .calls import call_all
from .replies import DONE, CallResult
from .state import Before, FleetState

PAUSE = "pause_generation"
PauseMode = Literal["abort", "retract", "in_place"]


async def pause(
    state: FleetState, mode: PauseMode, fields: Fields, before: Before | None
) -> CallResult:
    """Holds dispatch and pauses the engines, until `resume`; a pause that fails ends at once."""
    engines, within_s = state.engines(), state.timing.quick_call_s
    held = PAUSE in state.holds
    if mode == "abort" and state.mode in ("in_place", "retract") and not state.lacks_memory:
        # A scheduler that stands still ends no request. SGLang would wait for their end for ever,
        # and so would its `continue_generation`.
        await call_all(engines, "POST", "/continue_generation", b"{}", within_s)
    holding = asyncio.create_task(state.holds.begin(PAUSE))
    try:
        if before is not None:
            await before()
        await holding
    except BaseException:
        holding.cancel()
        await asyncio.wait({holding})
        if not held:
            state.holds.end(PAUSE)
        raise
    body = body_of(fields, mode=mode)
    result = CallResult.of(await call_all(engines, "POST", "/pause_generation", body, within_s))
    if not result.failed:
        state.mode = mode
        state.to_continue.clear()
    elif not held:  # its caller does not continue what was not paused
        await resume(state, {})
    return result


async def resume(state: FleetState, fields: Fields) -> CallResult:
    """Ends the pause. An engine that lacks memory continues once it has all of it back: SGLang
    would run what waits there on memory that is not there."""
    body, within_s, engines = body_of(fields), state.timing.quick_call_s, state.engines()
    lacking = state.lacking()
    later = [engine for engine in engines if engine.info.server_id in lacking]
    try:
        now = [engine for engine in engines if engine.info.server_id not in lacking]
        replies = await call_all(now, "POST", "/continue_generation", body, within_s)
        state.to_continue = {engine.info.server_id: body for engine in later}
    finally:
        state.mode = None
        state.holds.end(PAUSE)
    names = [engine.info.engine_id for engine in engines]
    return CallResult.of({name: replies.get(name, DONE) for name in names})
