"""Engines on a Ray cluster of several nodes on this machine; the servers are fakes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from seer_sgl.config import parse
from seer_sgl.driver.health import State
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.engine.launch.ray_host import MOST_BYTES
from seer_sgl.errors import ConfigError
from tests.support.launched import RESTARTING, all_groups, check, config, pid_of, rolling
from tests.support.processes import lives
from tests.support.waiting import until

from .fake_launched import LAST_LINE
from .ray_cluster import Nodes

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fake_servers")]

NO_ROOM = "the cluster has no room for 1 CPU"


PLACING = msgspec.structs.replace(RESTARTING, ray_room_s=2.0)


def on(cluster: Nodes, count: int, model: Path, starts: Path) -> dict[str, Any]:
    engines = {"launch": "ray", "ray_address": cluster.address, "count": count}
    settings = config(model, starts, engines=engines)
    settings["engines"]["sglang"]["own-end"] = True
    return settings


def families(pids: Iterable[int]) -> list[psutil.Process]:
    """Returns processes and their children."""
    roots = [psutil.Process(pid) for pid in pids]
    found = [process for root in roots for process in (root, *root.children(recursive=True))]
    assert len(found) == 2 * len(roots)
    return found


def any_runs(family: list[psutil.Process]) -> bool:
    return any(map(lives, family))


def names(log_lines: list[str], beginning: str, end: str = "") -> list[str]:
    """Returns the second words of log lines: ids of engines."""
    found = (line for line in log_lines if beginning in line and line.endswith(end))
    return [line.split()[1].rstrip(":") for line in found]


async def test_a_server_of_ray_that_dies_is_restarted_and_ends_with_the_fleet(
    cluster: Nodes, model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    settings = on(cluster, 2, model, starts)
    settings["engines"]["sglang"]["last-words"] = MOST_BYTES  # more than one reply holds
    async with rolling(settings, tmp_path, PLACING) as rollout:
        first = rollout.engines[1].url
        running = asyncio.create_task(all_groups(rollout))
        await until(lambda: rollout.driver.in_flight("e1"))
        os.kill(pid_of(starts, first), signal.SIGKILL)
        check(await running)
        await until(lambda: rollout.driver.available("e1"))
        assert rollout.engines[1].url != first
        servers = families(pid_of(starts, info.url) for info in rollout.engines)
    await until(lambda: not any_runs(servers))
    assert any("process on 127.0.0.1 ended with status -9" in line for line in log_lines)
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    ended = {name for name, text in logs.items() if text.endswith(f"{LAST_LINE}\n")}
    assert set(logs) - ended == {"e1.log"}  # that of the killed one
    assert all("loading weights" in text for text in logs.values())


async def test_what_a_node_refuses_is_one_line_here(
    cluster: Nodes, model: Path, tmp_path: Path
) -> None:
    (model / "config.json").unlink()
    settings = on(cluster, 2, model, tmp_path / "starts")
    with pytest.raises(ConfigError, match=r"^model\.path: .* has no config\.json$"):
        async with open_fleet(parse(settings).fleet, tmp_path / "logs", PLACING):
            pass


DRIVER = """
import asyncio, json, sys
from pathlib import Path
from seer_sgl.config import parse
from seer_sgl.engine.fleet import open_fleet
from seer_sgl.engine.launch import process

async def main():
    process.SERVER_MODULE = "tests.engine.fake_launched"
    async with open_fleet(parse(json.loads(sys.argv[1])).fleet, Path(sys.argv[2])) as fleet:
        print("open", *(engine.info.url for engine in fleet.engines), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_servers_on_nodes_end_when_their_driver_is_killed(
    cluster: Nodes, model: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    settings = json.dumps(on(cluster, 2, model, starts))
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DRIVER, settings, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert driver.stdout is not None
        opened = (await driver.stdout.readline()).decode().split()
        assert opened[0] == "open"
        servers = families(pid_of(starts, url) for url in opened[1:])
        assert len(servers) == 4
    finally:
        driver.kill()
        await driver.wait()
    await until(lambda: not any_runs(servers))


async def test_an_engine_without_room_joins_later_and_a_lost_node_is_a_lost_engine(
    cluster: Nodes, model: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    starts = tmp_path / "starts"
    async with rolling(on(cluster, 3, model, starts), tmp_path, PLACING) as rollout:
        driver, engines = rollout.driver, rollout.fleet.engines
        (late,) = names(log_lines, "is started later", NO_ROOM)
        states = {engine.engine_id: engine.state for engine in driver.states()}
        assert states.pop(late) in (State.DEAD, State.STARTING)
        assert set(states.values()) == {State.HEALTHY}
        servers = {
            info.engine_id: families([pid_of(starts, info.url)])
            for info in rollout.engines
            if info.url
        }

        running = asyncio.create_task(all_groups(rollout))
        await until(lambda: all(map(driver.in_flight, servers)))
        await asyncio.to_thread(cluster.kill, 1)
        check(await running)
        report = rollout.report()
        (lost,) = (engine["engine_id"] for engine in report["engines"] if engine["lost_chunks"])
        await until(lambda: not any_runs(servers[lost]))
        await until(lambda: bool(names(log_lines, "left the cluster")))
        assert names(log_lines, "left the cluster") == [lost]
        assert report["failed_requests"] == 0

        await asyncio.to_thread(lambda: [cluster.add() for _ in range(2)])
        await until(lambda: driver.available(late) and driver.available(lost))
        check(await all_groups(rollout))
        served = {engine["engine_id"]: engine["chunks"] for engine in rollout.report()["engines"]}
        assert len(served) == 3
        assert min(served.values()) > 0
        assert [engine.server.starts for engine in engines].count(1) == 2
