"""A test of the gate that does not belong there fails, with a line that names its tier."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support import tiers

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ADVICE = "make it smaller, or mark it `process`, which moves it from `make test` to"
# The tests of a file, and what the failure of each says; None for those that pass.
BREACHES = {
    "starts_a_process": "starts a process (true)",
    "forks": "starts a process (os.fork)",
    "starts_a_process_of_multiprocessing": "starts a process (SpawnProcess-",
    "sleeps": "waits 0.60 s of real time (limit 0.5 s)",
    "sleeps_beside_a_busy_loop": "waits 0.60 s of real time (limit 0.5 s)",
    "sleeps_beside_a_busy_loop_after_a_jump": "waits 0.60 s of real time (limit 0.5 s)",
    "waits_for_a_timer": "s of real time (limit 0.5 s)",
    "waits_in_small_steps": "s of CPU time and waits 2.",
    "computes": "s of CPU time and waits 0.00 s (limit 2.0 s)",
    "has_a_fixture_that_sleeps": "waits 0.60 s of real time (limit 0.5 s)",
    "has_a_timeout_that_is_not_reached": None,
    "has_a_long_sleep_that_is_cancelled": None,
    "lets_hours_pass_on_a_virtual_clock": None,
    "ends_a_long_sleep_by_a_late_jump": None,
    "imports_what_computes": None,
    "sleeps_in_a_thread": None,
    "is_marked": None,  # left out
}
FILE = """
import asyncio, multiprocessing, os, subprocess, threading, time
import pytest
from seer_sgl.sim.clock import run_virtually
from tests.support import tiers
from tests.support.waiting import jump

def test_starts_a_process(): subprocess.run(["true"], check=True)

def test_forks():
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)

def test_starts_a_process_of_multiprocessing():
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()

def test_sleeps(): time.sleep(0.6)

async def sleep_beside_a_busy_loop():
    async def busy():
        while True:
            await asyncio.sleep(0.05)
    task = asyncio.create_task(busy())
    await asyncio.sleep(0.6)
    task.cancel()

def test_sleeps_beside_a_busy_loop(): asyncio.run(sleep_beside_a_busy_loop())

def test_sleeps_beside_a_busy_loop_after_a_jump():
    async def main():
        jump(60)
        await sleep_beside_a_busy_loop()
    asyncio.run(main())

def test_waits_for_a_timer():
    async def main():
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0.6, done.set)
        await done.wait()
    asyncio.run(main())

def test_waits_in_small_steps(request):
    record = request.config.pluginmanager.get_plugin("gate")._watch.record
    async def main():
        for _ in range(500):
            await asyncio.sleep(0.045)
            if record.waited_s > tiers.COST_S:
                break
    asyncio.run(main())

def test_computes():
    begun = time.process_time()
    while time.process_time() < begun + 2.1:
        pass

@pytest.fixture
def slow(): time.sleep(0.6)

def test_has_a_fixture_that_sleeps(slow): pass

def test_has_a_timeout_that_is_not_reached():
    async def main():
        async with asyncio.timeout(60):
            await asyncio.sleep(0.01)
    asyncio.run(main())

def test_has_a_long_sleep_that_is_cancelled():
    async def main():
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0.01)
        task.cancel()
    asyncio.run(main())

def test_lets_hours_pass_on_a_virtual_clock(): run_virtually(asyncio.sleep(7200))

def test_ends_a_long_sleep_by_a_late_jump():
    async def main():
        task = asyncio.create_task(asyncio.sleep(60))
        for _ in range(20):
            await asyncio.sleep(0.03)
        jump(60)
        await task
    asyncio.run(main())

def test_imports_what_computes(): import computes

def test_sleeps_in_a_thread():
    thread = threading.Thread(target=time.sleep, args=(0.6,))
    thread.start()
    thread.join()

@pytest.mark.process
def test_is_marked(): subprocess.run(["true"], check=True)
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The tests that a run of the gate chose, with the message of each that failed."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "test_file.py").write_text(FILE)
    (folder / "computes.py").write_text(
        "import time\nbegun = time.process_time()\n"
        "while time.process_time() < begun + 2.1:\n    pass\n"
    )
    # A small limit of the cost, as if nothing else ran on the machine: it is higher on a busy one.
    (folder / "conftest.py").write_text(
        "from tests.support import tiers\ntiers.COST_S, tiers.slowness = 2.0, lambda: 1.0\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = process\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.tiers", "--tier", "gate"]
    options = ["-n", "0", "-p", "no:cacheprovider", "--rootdir", ".", "--junitxml", "junit.xml"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    subprocess.run([*command, *options], cwd=folder, env=environment, check=False)
    cases = ET.parse(folder / "junit.xml").iter("testcase")
    found = {each.attrib["name"].removeprefix("test_"): each.find("failure") for each in cases}
    return {name: None if f is None else f.attrib["message"] for name, f in found.items()}


@pytest.mark.parametrize("test", BREACHES)
def test_a_test_of_the_gate_keeps_its_rules(test: str, failures: dict[str, str | None]) -> None:
    message, reason = failures.get(test), BREACHES[test]
    if reason is None:
        assert message is None
    else:
        assert message is not None
        assert reason in message
        assert ADVICE in message


def test_a_marked_test_is_left_out(failures: dict[str, str | None]) -> None:
    assert failures.keys() == BREACHES.keys() - {"is_marked"}


@pytest.mark.parametrize(("slowness", "breaks"), [(1.0, True), (3.0, False)])
def test_a_busy_machine_raises_the_limit_of_the_cost_alone(
    slowness: float, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "slowness", lambda: slowness)
    record = tiers.Record()
    record.cpu_s = 1.5 * tiers.COST_S
    assert (record.breach() is not None) == breaks
    record.waited(1.5 * tiers.WAIT_S)
    assert "of real time" in str(record.breach())
