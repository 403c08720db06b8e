"""Engines that a cluster has no room for at first, or restarts at another URL; no Ray here."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.config import FleetConfig, parse
from seer_sgl.driver.health import State
from seer_sgl.engine import opening
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.engine.launch.launcher import EngineStart, Launcher, Site
from seer_sgl.engine.launch.local import LocalLauncher
from seer_sgl.engine.launch.server import ServerPlan
from seer_sgl.errors import EngineDelayed, EngineStartError
from seer_sgl.processes.child import LOOPBACK
from tests.support.launched import all_groups, check, config, rolling, weights_folder
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_servers", "nothing_left")]

NO_ROOM = "the cluster has no room for 1 CPU"


class Room:
    """The ids of the engines that the cluster has room for, and of those that wait."""

    def __init__(self, *engine_ids: str) -> None:
        self.engine_ids = set(engine_ids)
        self.waiting: set[str] = set()


class InRoom(LocalLauncher):
    """Starts servers here, each at another URL than the one before, where there is room."""

    room: Room

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if engine_id not in self.room.engine_ids:
            raise EngineDelayed(engine_id, NO_ROOM)
        return await super().start(engine_id, url)

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        await self.stop(engine_id)
        self.room.waiting.add(engine_id)
        await until(lambda: engine_id in self.room.engine_ids)
        self.room.waiting.discard(engine_id)
        return await super().start(engine_id)

    @override
    def delay(self, engine_id: str) -> str | None:
        return NO_ROOM if engine_id in self.room.waiting else None


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    opened = Room("e0", "e1")

    def launcher(plan: ServerPlan, log_dir: Path) -> Launcher:
        launcher = InRoom(plan, log_dir)
        launcher.room = opened
        return launcher

    @contextlib.asynccontextmanager
    async def open_here(config: FleetConfig, *_: Any) -> AsyncIterator[Site]:
        yield Site(config, LOOPBACK, launcher)

    monkeypatch.setattr(opening, "open_cluster", open_here)
    return opened


def of_ray(model: Path, starts: Path, mode: str = "serve") -> dict[str, Any]:
    return config(model, starts, mode, engines={"launch": "ray"})


async def test_an_engine_without_room_joins_with_the_current_weights_once_there_is_room(
    model: Path, tmp_path: Path, room: Room, log_lines: list[str]
) -> None:
    starts, newer = tmp_path / "starts", weights_folder(tmp_path / "newer", "the second")
    room.engine_ids = {"e0"}
    async with rolling(of_ray(model, starts), tmp_path) as rollout:
        driver = rollout.driver
        assert driver.states()[1].state in (State.DEAD, State.STARTING)
        assert not driver.available("e1")
        check(await all_groups(rollout))
        alone = rollout.report()
        assert (alone["lost_chunks"], alone["engines"][1]["chunks"]) == (0, 0)
        await until(lambda: rollout.fleet.engines[1].server.why == NO_ROOM)
        assert len(alone["engines"][1]["states"]) <= 3, "nothing changes while it waits"

        result = await rollout.backend.update_weights(
            WeightUpdate.from_disk(str(newer), version="v2")
        )
        assert result.succeeded == ["e0"]
        room.engine_ids.add("e1")
        await until(lambda: driver.available("e1"))
        assert rollout.engines[1].weights == "the second"
        check(await all_groups(rollout))
        both = rollout.report()
        assert min(each["chunks"] for each in both["engines"]) > 0
    assert f"engine e1 is started later: {NO_ROOM}" in log_lines


async def test_a_fleet_without_room_for_any_engine_does_not_start(
    model: Path, tmp_path: Path, room: Room
) -> None:
    room.engine_ids = set()
    with pytest.raises(EngineStartError, match=f"^engine e0: {NO_ROOM}$"):
        async with open_fleet(parse(of_ray(model, tmp_path / "starts")).fleet, tmp_path / "logs"):
            pass


async def test_an_engine_that_fails_to_start_is_no_late_engine(
    model: Path, tmp_path: Path, room: Room
) -> None:
    room.engine_ids = {"e0"}
    with pytest.raises(EngineStartError, match="e0 ended with status 3 while starting"):
        settings = parse(of_ray(model, tmp_path / "starts", "die")).fleet
        async with open_fleet(settings, tmp_path / "logs"):
            pass
