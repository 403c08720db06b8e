"""When the servers of engines are restarted, on a launcher that has no place for them."""

import asyncio
from functools import partial

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


async def test_an_engine_for_which_there_is_no_place_is_never_quarantined() -> None:
    launcher = Away()
    async with open_session() as session:
        supervisor = EngineSupervisor(launcher, session)
        supervisor.add_late(info("e0"), "the cluster has no room")
        watching = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0)
        for tries in range(1, 2 * MOST_FAILURES):
            jump(DEFAULT.restart_most_s)
            await until(partial(launcher.tried, tries))
        assert supervisor.server("e0").phase is ServerPhase.ENDED
        assert supervisor.server("e0").why == "engine e0: Ray gives it no place: its head is away"
        watching.cancel()
        await asyncio.wait({watching})
