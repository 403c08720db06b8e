"""Virtual time: a standstill is an error."""

import asyncio

import pytest

from seer_sgl.errors import SimulationError
from seer_sgl.sim.clock import run_virtually


def test_waiting_for_what_never_comes_is_an_error_not_a_hang() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="stands still"):
        run_virtually(work())
