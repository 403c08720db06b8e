"""What ends under a training: the server, the front, Ray. The real command, a fake server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_seer_sgl import COMMAND as SERVER
from trainings import Training

pytestmark = pytest.mark.engines
TESTS = Path(__file__).parent
COMMAND = """
from cpu_command import use_cpu
use_cpu()
from seer_openrlhf import command
command.MODULE = "generation_only"
command.main()
"""
PROMPTS, SAMPLES = 3, 2  # of generation_only.py
RAY = """
import sys
import ray
started = ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, object_store_memory=10**8)
print(started.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


class Faulted(Training):
    """The command as a process, and what its fake server has written to `folder`."""

    def __init__(self, folder: Path, command: list[str], **variables: str) -> None:
        super().__init__(command, folder, **variables)
        self._folder = folder

    @property
    def server(self) -> dict[str, Any]:
        """What the server was started with."""
        found: dict[str, Any] = json.loads((self._folder / "started").read_text())
        return found

    @property
    def url(self) -> str:
        """The server's address."""
        options = self.server["options"]
        return f"http://{options['--host']}:{options['--port']}"

    def wait_for_a_rollout(self) -> None:
        """Returns when a rollout has begun."""
        while not (self._folder / "rollouts").exists():
            assert self.process.poll() is None, self.output
            time.sleep(0.05)

    def front(self) -> psutil.Process:
        """Returns the process of the front."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        (found,) = [process for process in family if "SeerFront" in "".join(process.cmdline()[:1])]
        return found

    def outcome(self) -> tuple[int, list[str]]:
        """Returns the exit status and the lines of the output, once the command has ended."""
        return self.end(), self.output.splitlines()


def name_of(process: psutil.Process) -> str:
    """Returns the name of a process, or nothing if it has ended."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def training(folder: Path, mode: str, *arguments: str, **variables: str) -> Iterator[Faulted]:
    """Runs the command with a server in a mode. No process of it is left after the block."""
    (folder / "config").write_text(mode)
    seer = ["--seer.config", str(folder / "config"), "--seer.command", SERVER]
    before = set(psutil.Process().children(recursive=True))
    command = [sys.executable, "-c", COMMAND, *seer, "--vllm.num_engines", "1", *arguments]
    run = Faulted(folder, command, PYTHONPATH=f"{TESTS.parent}:{TESTS}", **variables)
    try:
        yield run
        assert run.process.poll() is not None
        if "RAY_ADDRESS" not in variables:
            family = set(psutil.Process().children(recursive=True))
            assert (
                not {process for process in family if process.status() != psutil.STATUS_ZOMBIE}
                - before
            )
    finally:
        if run.process.poll() is None:
            for process in psutil.Process(run.process.pid).children(recursive=True):
                process.kill()
            run.process.kill()


def test_a_run_without_a_fault_ends_without_warnings(tmp_path: Path) -> None:
    with training(tmp_path, "ready") as run:
        status, lines = run.outcome()
    output = "\n".join(lines)
    assert (status, f"{PROMPTS * SAMPLES} samples" in lines) == (0, True), output
    assert "Unclosed" not in output
    assert len((tmp_path / "rollouts").read_text().splitlines()) == 1


MODES = pytest.mark.parametrize(
    "flags", [[], pytest.param(["--asynchronous"], marks=pytest.mark.long)]
)


@MODES
def test_a_server_that_is_killed_in_a_rollout_ends_the_training(
    flags: list[str], tmp_path: Path
) -> None:
    with training(tmp_path, "silent", "--seer.wait_s", "0", *flags) as run:
        run.wait_for_a_rollout()
        url = run.url
        os.kill(run.server["pid"], signal.SIGKILL)
        status, lines = run.outcome()
    assert status == 1
    assert lines[-1].startswith(
        f"seer-openrlhf: the training failed: ServerError: /rollout: {url} has ended "
    ), lines[-1]
    assert any("seer-sgl serve ended by SIGKILL" in line for line in lines)


@MODES
def test_a_server_that_is_killed_is_restarted_and_the_rollout_continues(
    flags: list[str], tmp_path: Path
) -> None:
    with training(tmp_path, "mortal", *flags) as run:
        run.wait_for_a_rollout()
        os.kill(run.server["pid"], signal.SIGKILL)
        status, lines = run.outcome()
    output = "\n".join(lines)
    assert (status, f"{PROMPTS * SAMPLES} samples" in lines) == (0, True), output
    first, again = map(json.loads, (tmp_path / "rollouts").read_text().splitlines())
    assert first == again and first["journal"].endswith(first["rollout_id"])
    assert output.count("seer-sgl serve ended by SIGKILL") == 1
    assert (tmp_path / "removed").read_text() == f"/journal/{first['journal']}\n"


@MODES
def test_a_front_that_ray_kills_ends_the_training(flags: list[str], tmp_path: Path) -> None:
    with training(tmp_path, "silent", *flags) as run:
        run.wait_for_a_rollout()
        front = run.front()
        front.kill()
        status, lines = run.outcome()
    assert status == 1
    place = f"seer-openrlhf: the training failed: Ray's actor SeerFront (process {front.pid} on "
    assert lines[-1].startswith(place), lines[-1]
    assert "has ended: " in lines[-1]


@pytest.mark.long
def test_a_ray_that_runs_already_is_used_and_left_running(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    ray = subprocess.Popen([sys.executable, "-c", RAY], stdin=pipe, stdout=pipe, text=True)
    try:
        assert ray.stdout is not None
        address = ray.stdout.readline().strip()
        with training(tmp_path, "ready", RAY_ADDRESS=address) as run:
            status, lines = run.outcome()
        family = psutil.Process(ray.pid).children(recursive=True)
        names = {process: name_of(process) for process in family}
        assert "raylet" in names.values()
        actors = ("ray::SeerFront", "ray::Trainer")
        psutil.wait_procs([process for process, name in names.items() if name.startswith(actors)])
    finally:
        ray.communicate()  # the end of its input ends it
    assert (status, f"{PROMPTS * SAMPLES} samples" in lines) == (0, True), "\n".join(lines)
