"""Child processes: free ports, private logs and the shared memory that they leave behind."""

import asyncio
import errno
import mmap
import os
import signal
import socket
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.processes import child, shared_memory
from seer_sgl.processes.child import (
    OwnedProcess,
    free_port,
    last_line,
    log_tail,
    require_free_port,
)
from seer_sgl.processes.supervisor import SupervisedProcess, supervised
from seer_sgl.timing import Timing
from tests.support.processes import lives
from tests.support.waiting import until


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The only port that may be given; this process does not hold it."""
    monkeypatch.setattr(child, "_held", None)
    port = free_port()
    monkeypatch.setattr(child, "PORTS", range(port, port + 1))
    monkeypatch.setattr(child, "_given", set())
    return port


def test_a_free_port_is_given_once_and_is_none_of_an_outgoing_connection() -> None:
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert max(given) < 32768, "where the ports of outgoing connections begin"


def test_a_log_that_is_gone_hides_no_other_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone.log"
    complaint = "the log cannot be read: No such file or directory"
    assert last_line(gone) == log_tail(gone).strip() == complaint


def test_a_port_of_an_ipv6_address_is_tried_there() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = server.getsockname()[1]
    with server, pytest.raises(ConfigError, match=f"^k: ::1:{port}: Address already in use$"):
        require_free_port(port, "k", "::1")
    require_free_port(port, "k", "::1")


def test_a_port_somebody_listens_on_is_not_free(port: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        with pytest.raises(ConfigError, match=f"no free port from {port} to {port}"):
            free_port()
    assert free_port() == port


def test_a_port_that_is_required_goes_to_no_engine(port: int) -> None:
    require_free_port(port, "server.port")
    with pytest.raises(ConfigError, match="no free port"):
        free_port()


def test_processes_that_hold_their_ports_choose_different_ones(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.hold_ports()
    for _ in range(2):  # as two processes, each with its own memory of ports
        monkeypatch.setattr(child, "_given", set())
        if child._held:
            with pytest.raises(ConfigError, match="no free port"):
                free_port()
        else:
            assert free_port() == port
    assert child._held
    os.close(child._held.pop())
    monkeypatch.setattr(child, "_given", set())
    assert free_port() == port
    os.close(child._held.pop())


@pytest.mark.process
@pytest.mark.parametrize("before", ["", "what the last one wrote"])
async def test_a_log_is_for_its_owner_to_read(tmp_path: Path, before: str) -> None:
    log = tmp_path / "logs" / "e0.log"
    if before:
        log.parent.mkdir()
        log.write_text(before)
        log.chmod(0o644)
    process = await OwnedProcess.start([sys.executable, "-c", "print('x')"], log, os.environ)
    assert await process.wait() == 0
    assert log.read_text() == "x\n"
    assert log.stat().st_mode & 0o777 == 0o600


SHARES_MEMORY = """
import multiprocessing, sys, threading, time
from multiprocessing.shared_memory import SharedMemory
from seer_sgl.processes.child import end_with_parent

def child(block, lock):
    print("up", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    end_with_parent()
    context = multiprocessing.get_context("spawn")
    block, lock = SharedMemory(create=True, size=4096), context.Lock()
    print(block.name, flush=True)
    context.Process(target=child, args=(block, lock)).start()
    time.sleep(600)
"""
DRIVER = """
import asyncio, os, sys
from pathlib import Path
from typing import Any
from seer_sgl.processes.child import OwnedProcess

async def main():
    command = [sys.executable, sys.argv[1]]
    await OwnedProcess.start(command, Path(sys.argv[2]), os.environ)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def in_shared_memory() -> set[Path]:
    return set(shared_memory.FOLDER.iterdir())


def test_a_name_that_vanishes_while_names_are_read_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = shared_memory.FOLDER / "torch_gone"
    monkeypatch.setattr(shared_memory, "_names", lambda: [gone])
    assert shared_memory.mapped_by([psutil.Process()]) == set()


@pytest.mark.process
async def test_a_server_killed_outright_leaves_no_shared_memory(tmp_path: Path) -> None:
    program, log = tmp_path / "server.py", tmp_path / "log"
    program.write_text(SHARES_MEMORY)
    process = await OwnedProcess.start([sys.executable, str(program)], log, os.environ)
    await until(lambda: "up" in log.read_text())
    process.note_shared_memory()
    block = shared_memory.FOLDER / log.read_text().split()[0]
    left = shared_memory.mapped_by(psutil.Process().children(recursive=True))
    assert block in left
    assert any(name.name.startswith("sem.mp-") for name in left)
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    assert left <= in_shared_memory(), "killed processes cannot remove it"
    await process.stop()
    assert not left & in_shared_memory()


def sleeps(process: psutil.Process, thread: int) -> int:
    """Returns how often a thread of a process went to sleep."""
    text = Path(f"/proc/{process.pid}/task/{thread}/status").read_text()
    return int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.process
async def test_servers_outlive_a_stopped_driver_and_end_with_a_killed_one(tmp_path: Path) -> None:
    program, log = tmp_path / "server.py", tmp_path / "log"
    program.write_text(SHARES_MEMORY)
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(program), str(log)
    )
    await until(lambda: log.exists() and "up" in log.read_text())
    left = shared_memory.mapped_by(psutil.Process(driver.pid).children(recursive=True))
    assert len(left) >= 2
    servers = psutil.Process(driver.pid).children(recursive=True)
    (server,) = psutil.Process(driver.pid).children()
    driver.send_signal(signal.SIGSTOP)
    # Its thread that looks for the parent goes to sleep after each look.
    (watcher,) = {thread.id for thread in server.threads()} - {server.pid}
    before = sleeps(server, watcher)
    await until(lambda: not lives(server) or sleeps(server, watcher) >= before + 3)
    assert all(map(lives, servers))
    driver.kill()
    await driver.wait()
    await until(lambda: not any(map(lives, servers)))
    await until(lambda: not left & in_shared_memory())


def test_shared_memory_of_others_and_other_files_are_left_alone(tmp_path: Path) -> None:
    model = shared_memory.FOLDER / f"a-model-\udce9-{os.getpid()}"  # a name that is no UTF-8
    theirs = SharedMemory(create=True, size=4096)
    try:
        model.write_bytes(bytes(4096))
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            mine = shared_memory.mapped_by([psutil.Process()])
            assert model not in mine
            assert shared_memory.FOLDER / theirs.name in mine
        assert not shared_memory.mapped_by([])
    finally:
        model.unlink()
        theirs.close()
        theirs.unlink()


@pytest.mark.process
async def test_a_child_that_ends_while_it_is_being_ended_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await OwnedProcess.start(["sleep", "600"], tmp_path / "log", os.environ)
    # The state of a moment ago: it ends between the question and the signal.
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: True)
    await process.stop()
    assert process.exit_status == -signal.SIGTERM


@pytest.mark.process
async def test_a_process_that_has_the_id_of_an_ended_one_is_left_alone(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(
        "cat", stdin=pipe, stdout=pipe, start_new_session=True
    )
    ended: Any = SimpleNamespace(pid=other.pid, returncode=0, wait=lambda: asyncio.sleep(0))
    await OwnedProcess(ended, tmp_path / "log").stop()
    output, _ = await other.communicate(b"alive")
    assert output == b"alive"


@pytest.mark.parametrize("turns", range(3))
async def test_who_is_cancelled_as_a_process_ends_stops(tmp_path: Path, turns: int) -> None:
    ended = asyncio.Event()
    process: Any = SimpleNamespace(pid=1 << 30, returncode=None, wait=ended.wait)  # no such id
    stopping = asyncio.create_task(OwnedProcess(process, tmp_path / "log").stop())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ended.set()
    for _ in range(turns):  # the end of the process arrives one turn further in each case
        await asyncio.sleep(0)
    if not stopping.done():
        stopping.cancel()
        await asyncio.wait({stopping})
        assert stopping.cancelled()


@pytest.mark.process
async def test_a_process_that_cannot_be_pinned_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[psutil.Process] = []

    def no_such_core(pid: int, _: Any) -> None:
        started.append(psutil.Process(pid))
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", no_such_core)
    with pytest.raises(OSError, match="Invalid argument"):
        await OwnedProcess.start(["sleep", "600"], tmp_path / "log", os.environ, [0])
    (process,) = started
    assert not lives(process)


@pytest.mark.process
@pytest.mark.parametrize(
    "failure", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a defect")]
)
async def test_a_process_that_cannot_be_restarted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    start = OwnedProcess.start
    failures: list[Exception] = []

    async def exhausted(*arguments: Any) -> OwnedProcess:
        if not failures:
            failures.append(failure)
            raise failure
        return await start(*arguments)

    process = SupervisedProcess("it", ["sleep", "600"], tmp_path / "log", os.environ)
    await process.start()
    try:
        async with supervised([process], timing=Timing(watch_s=0.01)):
            assert process._process is not None
            os.kill(process._process.pid, signal.SIGKILL)
            monkeypatch.setattr(OwnedProcess, "start", exhausted)
            await until(lambda: bool(failures) and process.exit_reason() is None)
    finally:
        await process.stop()
