"""A draft hub in its own process: drafting continues after the hub is restarted."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from array import array
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from seer_sgl.config import DraftConfig
from seer_sgl.errors import HubError
from seer_sgl.link import contract, hub
from seer_sgl.link.drafthub import DraftHub
from seer_sgl.link.hub import start_hubs
from seer_sgl.link.server import LinkServer, open_link
from seer_sgl.processes.child import free_port
from tests.draft.replicas import tokens_of
from tests.listening import listeners
from tests.support.hubs import MEMORY, all_have, engine, hub_client, hub_of
from tests.support.processes import command_of
from tests.support.waiting import until

pytestmark = pytest.mark.process


@asynccontextmanager
async def hub_on(port: int, token: str = "secret") -> AsyncIterator[LinkServer]:
    async with open_link("127.0.0.1", port, token, DraftHub(MEMORY)) as server:
        yield server


async def test_a_driver_speaks_to_a_distant_hub_again_after_it_restarted() -> None:
    port = free_port()
    async with hub_client(f"http://127.0.0.1:{port}/link", "secret") as distant:
        distant.load("g", 8, array("i", [1, 2]))
        distant.load("h", 8, array("i", [3]))
        async with hub_on(port) as server:
            first = hub_of(server).hub
            await until(lambda: {8} == set(tokens_of(first, "g")) == set(tokens_of(first, "h")))
        async with hub_on(port) as server:
            second = hub_of(server).hub
            await until(lambda: {8} == set(tokens_of(second, "g")) == set(tokens_of(second, "h")))
            distant.done("g")
            await until(lambda: "g" not in second.groups)
            assert "h" in second.groups


def hubs() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "drafthub" in command_of(each)]


async def test_a_hub_on_loopback_is_restarted_if_it_dies_and_ends_with_its_block(
    tmp_path: Path, log_lines: list[str]
) -> None:
    async with start_hubs(DraftConfig(memory="1mb"), tmp_path, "secret") as url:
        (process,) = hubs()
        assert "secret" not in " ".join(process.cmdline()), "every user can read command lines"
        assert [each.on_loopback for each in listeners([process])] == [True]
        async with engine(url, "secret", "one") as one, engine(url, "secret", "two") as two:
            one.decode(one.replica.begin("g", 0, [1], []), 5)
            slot = two.replica.begin("g", 1, [1], [])
            two.decode(slot, 6)
            await all_have([one, two], [5], [6])
            process.kill()
            await until(lambda: log_lines)
            two.decode(slot, 7)
            await all_have([one, two], [5], [6, 7])
        assert log_lines == [
            "draft hub is being restarted: its process ended with status -9; its log: "
            f"{tmp_path / 'drafthub.log'}"
        ]
    assert not hubs()


async def test_a_large_fleet_has_several_hubs(tmp_path: Path) -> None:
    async with start_hubs(DraftConfig(memory="1mb"), tmp_path, "secret", engines=65) as urls:
        assert len(hubs()) == len(set(urls.split(","))) == 2
        async with hub_client(urls, "secret") as client, asyncio.timeout(60):
            client.load("g", 0, array("i", [8]))
            client.load("h", 0, array("i", [8]))
            while (await client.facts() or {}).get("tokens_in") != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert not hubs()


DRIVER = """
import asyncio, pathlib, sys
from seer_sgl.config import DraftConfig
from seer_sgl.link.hub import start_hubs

async def drive():
    async with start_hubs(DraftConfig(), pathlib.Path(sys.argv[1]), "secret"):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(drive())
"""


async def test_a_driver_that_is_killed_leaves_no_hub(tmp_path: Path) -> None:
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(tmp_path), stdout=PIPE
    )
    assert driver.stdout is not None
    assert await driver.stdout.readline() == b"up\n"
    (left,) = psutil.Process(driver.pid).children()
    driver.kill()
    await driver.communicate()
    await until(lambda: not left.is_running())


async def test_a_hub_that_cannot_start_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(hub, "free_port", lambda *_: taken.getsockname()[1])
        with pytest.raises(HubError, match=r"(?s)draft hub: .* status 2; .*Address already in use"):
            async with start_hubs(DraftConfig(), tmp_path, "secret"):
                pass
    assert not hubs()


COMMAND = [sys.executable, "-m", "seer_sgl", "drafthub"]


def environment(token: str | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != contract.LINK_TOKEN}
    return inherited if token is None else inherited | {contract.LINK_TOKEN: token}


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
async def test_a_hub_of_its_own_serves_until_it_is_told_to_stop(ended_by: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--port", "0", stdout=PIPE, stderr=PIPE, env=environment("secret")
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        address = line.removeprefix("draft hub ready on ").strip()
        assert address.startswith("127.0.0.1:")
        url = f"http://{address}/link"
        async with engine(url, "secret", "one") as one, engine(url, "secret", "two") as two:
            one.decode(one.replica.begin("g", 0, [1], []), 5)
            two.decode(two.replica.begin("g", 1, [1], []), 6)
            await all_have([one, two], [5], [6])
            process.send_signal(ended_by)
            output, complaints = await process.communicate()
        assert (process.returncode, output, complaints) == (0, b"", b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize(
    ("options", "token", "complaint"),
    [
        ("--port x", "secret", "--port x is not a number"),
        (f"--port {'9' * 5000}", "secret", "--port 999"),
        ("--port 1 --host ..", "secret", "--host ..: only host names and IPv4 addresses"),
        ("--port 99999", "secret", "--port: there is no port 99999"),
        ("--port 0 --memory much", "secret", "--memory: 'much' is not a size"),
        ("--port 0 --host 203.0.113.1", "secret", "--port: 203.0.113.1:0: Cannot assign"),
        ("--port 0", None, "set SEER_SGL_LINK_TOKEN, the same value as for the driver and"),
    ],
)
def test_a_hub_that_cannot_be_is_refused_in_one_line(
    options: str, token: str | None, complaint: str
) -> None:
    done = subprocess.run(
        [*COMMAND, *options.split()],
        capture_output=True,
        text=True,
        check=False,
        env=environment(token),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"seer-sgl: drafthub: {complaint}")
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
