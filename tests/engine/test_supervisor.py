"""When the servers of engines are restarted, on a launcher that has no place for them."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from functools import partial

import pytest
from typing_extensions import override

from seer_sgl.engine.launch.launcher import EngineStart, Launcher
from seer_sgl.engine.session import open_session
from seer_sgl.engine.supervisor import EngineSupervisor
from seer_sgl.engine_types import ServerPhase
from seer_sgl.errors import EngineDelayed
from seer_sgl.processes.restarts import MOST_FAILURES
from seer_sgl.timing import DEFAULT
from tests.support.infos import info
from tests.support.waiting import jump, until


class Away(Launcher):
    """The launcher of a cluster whose head is away."""

    tries = 0

    def tried(self, times: int) -> bool:
        return self.tries == times

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        raise AssertionError("it has no first place either")

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        self.tries += 1
        raise EngineDelayed(engine_id, "Ray gives it no place: its head is away")


@contextlib.asynccontextmanager
async def supervised(launcher: Away, tries: int) -> AsyncIterator[EngineSupervisor]:
    """Yields the supervisor of one engine, which the launcher has been asked for so many times."""
    async with open_session() as session:
        supervisor = EngineSupervisor(launcher, session)
        supervisor.add_late(info("e0"), "the cluster has no room")
        watching = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0)
        for tried in range(1, tries + 1):
            jump(DEFAULT.restart_most_s)
            await until(partial(launcher.tried, tried))
        try:
            yield supervisor
        finally:
            watching.cancel()
            await asyncio.wait({watching})


async def test_an_engine_for_which_there_is_no_place_is_never_quarantined() -> None:
    launcher = Away()
    async with supervised(launcher, 2 * MOST_FAILURES - 1) as supervisor:
        assert supervisor.server("e0").phase is ServerPhase.ENDED
        assert supervisor.server("e0").why == "engine e0: Ray gives it no place: its head is away"


class Defective(Away):
    """A launcher with a defect, which cannot end what it has started either."""

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        self.tries += 1
        raise KeyError("a defect")

    @override
    async def stop(self, engine_id: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_launcher_that_fails_in_any_way_quarantines_an_engine_and_no_other_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = Defective()
    async with supervised(launcher, MOST_FAILURES) as supervisor:
        jump(DEFAULT.restart_most_s)
        await until(lambda: "engine e0 was not ended" in caplog.messages)
        assert supervisor.server("e0").phase is ServerPhase.QUARANTINED
        assert supervisor.server("e0").why.endswith("the last time: 'a defect'")
        supervisor.add_late(info("e1"), "the cluster has no room")
        jump(DEFAULT.restart_most_s)
        await until(partial(launcher.tried, MOST_FAILURES + 1))
