"""Pause and continue: what happens to the responses in progress."""

import asyncio
from typing import Literal

from .bodies import Fields, body_of
from .calls import call_all
from .replies import CallResult
from .state import Before, FleetState

PAUSE = "pause_generation"
PauseMode = Literal["abort", "retract", "in_place"]


async def pause(
    state: FleetState, mode: PauseMode, fields: Fields, before: Before | None
) -> CallResult:
    """Holds dispatch and pauses the engines, until `resume`."""
    engines = state.engines()
    held = PAUSE in state.holds
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
    state.mode = mode
    body, within_s = body_of(fields, mode=mode), state.timing.quick_call_s
    replies = await call_all(engines, "POST", "/pause_generation", body, within_s)
    return CallResult.of(replies)


async def resume(state: FleetState, fields: Fields) -> CallResult:
    """Ends the pause."""
    body, within_s = body_of(fields), state.timing.quick_call_s
    try:
        replies = await call_all(state.engines(), "POST", "/continue_generation", body, within_s)
    finally:
        state.mode = None
        state.holds.end(PAUSE)
    return CallResult.of(replies)
