"""Local engines that die are restarted by the real launcher; the servers are fakes."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from seer_sgl import Rollout
from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.config import parse
from seer_sgl.driver.health import State
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.engine_types import ServerPhase
from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.processes import restarts
from seer_sgl.processes.child import OwnedProcess
from seer_sgl.types import Group
from tests.support.launched import (
    RESTARTING,
    all_groups,
    check,
    config,
    kill,
    pid_of,
    rolling,
    started,
    weights_folder,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_servers", "nothing_left")]


async def running_struck(
    rollout: Rollout, starts: Path, strike: Callable[[Path, str], object] = kill
) -> asyncio.Task[list[Group]]:
    """Begins to roll out, and strikes the last engine when it has chunks; returns the rollout."""
    last = rollout.engines[-1]
    running = asyncio.create_task(all_groups(rollout))
    await until(lambda: rollout.driver.in_flight(last.engine_id))
    strike(starts, last.url)
    return running


async def struck(
    rollout: Rollout, starts: Path, strike: Callable[[Path, str], object]
) -> dict[str, Any]:
    """Rolls out while engine e1, with chunks, is struck and restarted, and once more with it.

    Returns the report of the first rollout.
    """
    url = rollout.engines[1].url
    running = await running_struck(rollout, starts, strike)
    check(await running)
    report = rollout.report()
    await until(lambda: started(starts, url) == 2)
    await until(lambda: rollout.driver.available("e1"))
    check(await all_groups(rollout))
    assert rollout.report()["engines"][1]["chunks"] > 0, "it serves again"
    assert (started(starts, url), rollout.engines[1].url) == (2, url)
    return report


async def test_a_killed_engine_is_restarted_and_serves_and_no_sample_changes(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    async with rolling(config(model, starts), tmp_path) as rollout:
        killed = await struck(rollout, starts, kill)
        assert rollout.report()["respawns"] == 0, "of the second one"
    assert (killed["respawns"], killed["failed_requests"]) == (1, 0)
    assert killed["engines"][1]["lost_chunks"] == killed["lost_chunks"] == killed["retries"] > 0
    states = [entry["state"] for entry in killed["engines"][1]["states"]]
    assert states[0] == "healthy"
    assert "starting" in states
    again = "engine e1 is being restarted: its process ended with status -9; its log: "
    assert any(line.startswith(again) for line in log_lines)
    assert any(line.startswith("engine e1 is up again after") for line in log_lines)
    assert "loading weights" in (tmp_path / "logs" / "e1.1.log").read_text()


async def test_an_engine_that_hangs_for_good_is_restarted(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    settings = config(model, starts, engines={"stall_timeout_s": 0.5})
    async with rolling(settings, tmp_path) as rollout:
        hung = await struck(rollout, starts, lambda *place: os.kill(pid_of(*place), signal.SIGSTOP))
    assert hung["engines"][1]["lost_chunks"] > 0
    assert hung["failed_requests"] == 0
    # The other one may stall too: 0.5 s without progress are enough, on a busy machine.
    itself = "engine e0 is out of service: engine e0"
    stalled = any(line.startswith(itself) for line in log_lines)
    assert stalled or hung["engines"][0]["lost_chunks"] == 0
    assert not any(line.startswith("engine e0 is being restarted") for line in log_lines)
    again = "engine e1 is being restarted: it hung: "
    assert any(line.startswith(again) for line in log_lines)


async def test_an_engine_whose_kv_pool_broke_ends_its_chunks_and_is_restarted(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    why = "the KV thread `read` ended: OSError('gone')"

    def break_pool(starts: Path, url: str) -> None:
        (starts / f"{url.rpartition(':')[2]}.kv").write_text(why)

    timing = msgspec.structs.replace(RESTARTING, refresh_every_s=0.5)
    async with rolling(config(model, starts), tmp_path, timing) as rollout:
        url = rollout.engines[1].url
        report = await struck(rollout, starts, break_pool)
    assert report["lost_chunks"] == 0
    again = f"engine e1 is being restarted: engine e1 ({url}): the KV thread `read` ended"
    assert any(line.startswith(again) for line in log_lines)


async def test_the_only_engine_may_die_and_the_rollout_waits_for_it(
    model: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    settings = config(model, starts, engines={"count": 1, "recovery_timeout_s": 0.1})
    async with rolling(settings, tmp_path) as rollout:
        running = await running_struck(rollout, starts)
        check(await running)


async def test_an_engine_that_fails_to_start_is_quarantined_with_the_reason(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    async with rolling(config(model, starts, "once"), tmp_path) as rollout:
        url = rollout.engines[1].url
        running = await running_struck(rollout, starts)
        engine = rollout.fleet.engines[1]
        await until(lambda: engine.server.phase is ServerPhase.QUARANTINED)
        await until(lambda: rollout.driver.states()[1].state is State.QUARANTINED)
        check(await running)
        check(await all_groups(rollout))
        report = rollout.report()
    assert started(starts, url) == restarts.MOST_FAILURES
    last = report["engines"][1]["states"][-1]
    assert last["state"] == "quarantined"
    assert last["why"].startswith(f"it failed {restarts.MOST_FAILURES} times in a row; the last")
    assert "ended with status 3 while starting" in last["why"]
    assert any(line.startswith("engine e1 is not restarted: it failed") for line in log_lines)


async def test_a_server_that_hangs_and_is_quarantined_is_ended(model: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    settings = parse(config(model, starts)).fleet
    async with open_fleet(settings, tmp_path / "logs", RESTARTING) as fleet:
        engine = fleet.engines[1]
        for _ in range(restarts.MOST_FAILURES):
            await until(lambda: engine.server.phase is ServerPhase.RUNNING)
            engine.end_server("it hung")
        await until(lambda: engine.server.phase is ServerPhase.QUARANTINED)
        process = pid_of(starts, engine.info.url)
        await until(lambda: not psutil.pid_exists(process))
        assert engine.server.why.endswith("the last time: it hung")


async def test_the_rollout_ends_with_the_reason_when_no_engine_can_come_back(
    model: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    engines = {"count": 1, "recovery_timeout_s": 0.2}
    async with rolling(config(model, starts, "once", engines=engines), tmp_path) as rollout:
        running = await running_struck(rollout, starts)
        with pytest.raises(RolloutError, match=r"no engine has served .* it failed 5 times in a"):
            await running


@pytest.mark.parametrize("count", [1, 2])
async def test_an_engine_restarted_loads_the_weights_of_the_last_update_from_disk(
    model: Path, tmp_path: Path, log_lines: list[str], count: int
) -> None:
    starts, newer = tmp_path / "starts", weights_folder(tmp_path / "newer", "the second")
    async with rolling(config(model, starts, engines={"count": count}), tmp_path) as rollout:
        await rollout.backend.update_weights(WeightUpdate.from_disk(str(newer), version="v2"))
        last = rollout.engines[-1]
        kill(starts, last.url)
        await until(lambda: not rollout.driver.available(last.engine_id))
        await until(lambda: rollout.driver.available(last.engine_id))
        last = rollout.engines[-1]
        assert (last.weight_version, last.weights) == ("v2", "the second")
        assert {info.model_path for info in rollout.engines} == {str(newer)}
    assert f"engine {last.engine_id} has loaded weights v2" in log_lines


async def test_an_engine_that_missed_the_update_while_it_was_dead_loads_it(
    model: Path, tmp_path: Path
) -> None:
    starts, newer = tmp_path / "starts", weights_folder(tmp_path / "newer", "the second")
    async with rolling(config(model, starts), tmp_path) as rollout:
        driver = rollout.driver
        kill(starts, rollout.engines[1].url)
        await until(lambda: not driver.available("e1"))
        result = await rollout.backend.update_weights(
            WeightUpdate.from_disk(str(newer), version="v2")
        )
        assert result.succeeded == ["e0"]
        await until(lambda: driver.available("e1"))
        assert not driver.stale
        assert rollout.engines[1].weights == "the second"


@pytest.mark.parametrize("version", ["v2", None])
async def test_an_engine_that_is_started_later_loads_the_weights_of_the_last_update(
    model: Path, tmp_path: Path, version: str | None
) -> None:
    starts, newer = tmp_path / "starts", weights_folder(tmp_path / "newer", "the second")
    async with rolling(config(model, starts), tmp_path) as rollout:
        backend = rollout.backend
        await backend.update_weights(WeightUpdate.from_disk(str(newer), version=version))
        info = await backend.start()
        assert (info.engine_id, info.weights) == ("e2", "the second")
        await backend.drain("e0")
        check(await all_groups(rollout))
        assert [each["chunks"] > 0 for each in rollout.report()["engines"]] == [True, True]

        (newer / "weights").write_text("the third, which no engine has")
        lacks = rf"engine e3 .* does not have weights {version or 'default'}"
        with pytest.raises(ConfigError, match=lacks):
            await backend.start()
        assert [info.engine_id for info in rollout.engines] == ["e1", "e2"]


async def test_an_engine_whose_weights_are_on_no_disk_is_stale_until_the_next_update(
    model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts, newer = tmp_path / "starts", weights_folder(tmp_path / "newer", "the second")
    async with rolling(config(model, starts), tmp_path) as rollout:
        await rollout.backend.update_weights(WeightUpdate.from_disk(str(newer), version="v2"))
        (newer / "weights").write_text("the third, which no engine has")
        kill(starts, rollout.engines[1].url)
        await until(lambda: rollout.driver.states()[1].state is State.STALE)
        check(await all_groups(rollout))
        report = rollout.report()
        assert report["engines"][1]["chunks"] == 0
        assert rollout.driver.states()[1].state is State.STALE
        await rollout.backend.update_weights(WeightUpdate.from_disk(str(newer), version="v3"))
        await until(lambda: rollout.driver.available("e1"))
    assert any("engine e1 waits for a weight update: " in line for line in log_lines)


async def test_engines_that_all_die_at_once_again_and_again_are_not_quarantined(
    model: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    async with rolling(config(model, starts), tmp_path) as rollout:
        for _ in range(restarts.MOST_FAILURES + 1):
            for info in rollout.engines:
                kill(starts, info.url)
            await until(lambda: not any(map(rollout.driver.available, ("e0", "e1"))))
            await until(lambda: all(map(rollout.driver.available, ("e0", "e1"))))
        check(await all_groups(rollout))


async def test_an_engine_removed_while_it_restarts_leaves_nothing(
    model: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    async with open_fleet(parse(config(model, starts)).fleet, tmp_path / "logs") as fleet:
        engine = fleet.engines[1]
        kill(starts, engine.info.url)
        await until(lambda: engine.server.phase is ServerPhase.STARTING)
        await fleet.stop_engine("e1")
        assert engine.server.phase is ServerPhase.RUNNING, "as of an engine that is not ours"
        (added,) = await fleet.start_engine()
        assert added.info.engine_id == "e2"


async def test_a_start_without_descriptors_is_a_failed_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    failures: list[OSError] = []
    start = OwnedProcess.start

    async def exhausted(*arguments: Any) -> OwnedProcess:
        if len(failures) < 2:
            failures.append(OSError(errno.EMFILE, "Too many open files"))
            raise failures[-1]
        return await start(*arguments)

    settings = config(model, starts, engines={"count": 1, "recovery_timeout_s": 5})
    async with rolling(settings, tmp_path) as rollout:
        url = rollout.engines[0].url
        monkeypatch.setattr(OwnedProcess, "start", exhausted)
        async with asyncio.timeout(60):
            running = await running_struck(rollout, starts)
        check(await running)
    assert len(failures) == 2
    assert started(starts, url) == 2
