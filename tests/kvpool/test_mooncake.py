"""A real Mooncake on loopback: it starts, is kept alive, and leaves nothing behind."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from seer_sgl.config import KvPoolConfig
from seer_sgl.errors import ConfigError, PoolError
from seer_sgl.kvpool import mooncake
from seer_sgl.kvpool.mooncake import Machines, open_mooncake
from seer_sgl.processes import loopback
from seer_sgl.processes.supervisor import SupervisedProcess
from seer_sgl.timing import Timing
from tests.listening import listeners
from tests.logs import logged
from tests.support.mooncakes import DEADLINE_S, has_memory, until_it_stores
from tests.support.processes import command_of, lives
from tests.support.waiting import until

pytestmark = pytest.mark.process


def config(**keys: Any) -> KvPoolConfig:
    return KvPoolConfig(backend="mooncake", memory="16mb", **keys)


def started() -> set[psutil.Process]:
    """Returns all living descendants of this process."""
    return set(filter(lives, psutil.Process().children(recursive=True)))


def nodes(kind: str) -> set[psutil.Process]:
    """Returns our processes of a kind: store, master (our wrapper) or mooncake_master."""
    matching = set()
    for process in started():
        command = command_of(process)
        if kind in (*command[3:4], *(Path(part).name for part in command[:1])):
            matching.add(process)
    return matching


class Opened:
    """The address of an open Mooncake, and the log lines since its start."""

    def __init__(self, lines: list[str]) -> None:
        self.address = ""
        self.lines = lines


@asynccontextmanager
async def opened(log_dir: Path, **keys: Any) -> AsyncIterator[Opened]:
    """Opens a Mooncake and asserts that no process of it is left afterwards."""
    before, during = started(), set[psutil.Process]()
    try:
        with logged() as lines:
            it = Opened(lines)
            async with open_mooncake(config(**keys), log_dir) as it.address:
                try:
                    yield it
                finally:
                    during = started() - before
    finally:
        assert {process.pid for process in during if lives(process)} == set()
        assert started() <= before
        host, _, port = it.address.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


async def test_master_and_stores_listen_on_loopback_only_and_end_with_the_block(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, stores=2) as pool:
        assert pool.lines == [f"KV pool: Mooncake master at {pool.address}, 2 x 16mb"]
        (master,) = nodes("mooncake_master")
        assert pool.address in {
            f"{listener.ip}:{listener.port}" for listener in listeners([master])
        }
        assert await has_memory(pool.address, tmp_path)
        by_process = {store: listeners([store]) for store in nodes("store")}
        assert [len(ports) >= 2 for ports in by_process.values()] == [True, True]
        for ports in (listeners([master]), *by_process.values()):
            assert [listener for listener in ports if not listener.on_loopback] == []


async def test_ports_that_are_to_be_open_are_and_a_warning_is_logged(tmp_path: Path) -> None:
    async with opened(tmp_path, open_ports=True) as pool:
        assert pool.lines[0] == mooncake.OPEN_PORTS
        (store,) = nodes("store")
        assert not all(listener.on_loopback for listener in listeners([store]))


async def test_a_kernel_that_cannot_keep_ports_on_loopback_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "refusal", lambda: "it does not")
    with pytest.raises(ConfigError) as raised:
        async with open_mooncake(config(), tmp_path):
            pass
    assert str(raised.value) == (
        "kv_pool.backend: mooncake: it does not; kv_pool.backend: file opens no ports, "
        "kv_pool.open_ports: true leaves Mooncake's to a firewall"
    )


async def test_nothing_is_left_of_it_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with opened(tmp_path):
            raise ZeroDivisionError


async def test_a_killed_store_is_restarted_and_the_others_continue(tmp_path: Path) -> None:
    async with opened(tmp_path, stores=2) as pool:
        before = nodes("store") | nodes("master") | nodes("mooncake_master")
        log = tmp_path / "mooncake-store0.log"
        stores = nodes("store")
        (victim,) = (s for s in stores if str(log) in {file.path for file in s.open_files()})
        victim.kill()
        await until(lambda: "store0 is being restarted" in pool.lines[-1], DEADLINE_S)
        # Its log restarts.
        await until(
            lambda: bool(nodes("store") - before) and "segment mounted" in log.read_text(),
            DEADLINE_S,
        )
        assert [line.partition(":")[2] for line in pool.lines[1:]] == [
            f" store0 is being restarted: its process ended with status -9; its log: {log}"
        ]
        assert {process for process in before if lives(process)} == before - {victim}
        (again,) = nodes("store") - before
        assert len(listeners([again])) >= 2
        assert all(listener.on_loopback for listener in listeners([again]))


@pytest.mark.parametrize("kind", ["master", "mooncake_master"])
async def test_a_killed_master_is_restarted_and_the_stores_join_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(tmp_path) as pool:
        stores, (victim,) = nodes("store"), nodes(kind)
        victim.kill()
        await until(lambda: bool(nodes(kind) - {victim}), DEADLINE_S)
        assert "master is being restarted" in pool.lines[-1]
        await until_it_stores(pool.address, tmp_path)
        assert nodes("store") == stores


async def test_a_mooncake_that_runs_already_is_joined_and_nothing_started(tmp_path: Path) -> None:
    async with opened(tmp_path) as pool:
        before, lines = started(), [*pool.lines]
        settings = config(master=pool.address)
        async with open_mooncake(settings, tmp_path) as address:
            assert address == pool.address
            assert started() == before
        assert pool.lines == lines
        assert await has_memory(pool.address, tmp_path), "and the running one stays unchanged"


async def test_something_that_is_no_mooncake_is_refused_by_the_keys_name(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    before = started()
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        master = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^kv_pool\.master: {master}: "):
            async with open_mooncake(config(master=master), tmp_path):
                pass
    assert started() <= before


async def test_a_master_that_cannot_start_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = started()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setattr(mooncake, "free_port", lambda *_: taken.getsockname()[1])
        with pytest.raises(
            PoolError, match=r"(?s)KV pool: master: its process ended .*end of its log:"
        ):
            async with open_mooncake(config(), tmp_path):
                pass
    assert started() <= before


async def test_a_machine_without_mooncake_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake, "load_problem", lambda: "mooncake is not installed")
    with pytest.raises(ConfigError, match=r"^kv_pool\.backend: mooncake is not .*doctor"):
        async with open_mooncake(config(), tmp_path):
            pass


async def test_a_store_that_ends_in_its_start_is_not_waited_for(tmp_path: Path) -> None:
    def store(index: int, *_: Any) -> SupervisedProcess:
        command = [sys.executable, "-c", "raise SystemExit('no memory')"]
        log = tmp_path / "store.log"
        return SupervisedProcess(f"store {index}", command, log, dict(os.environ))

    with pytest.raises(PoolError, match=r"^store 0: .* ended with status 1(?s:.*)no memory"):
        endless = Timing(pool_start_s=1e9)
        opening = open_mooncake(config(), tmp_path, Machines(store=store), timing=endless)
        async with asyncio.timeout(60), opening:
            pass
