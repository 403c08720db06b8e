"""Real SGLang servers, started as a user would: `seer-sgl engine`."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from seer_sgl.config import FlagValue
from seer_sgl.engine.launch.process import server_flags
from seer_sgl.link.hubserver import READY
from seer_sgl.processes import shared_memory
from seer_sgl.processes.child import free_port
from tests.listening import family
from tests.support.programs import wait_for

if TYPE_CHECKING:
    from tests.e2e.drivers import Driver, Start
    from tests.e2e.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "bench" / "reasoner" / "model"
HELD_OUT = ROOT / "bench" / "reasoner" / "prompts" / "held_out.jsonl"
KV_TOKENS = 10_240
SEER_SGL = [sys.executable, "-m", "seer_sgl"]

# A program that a script starts in the background inherits an ignored SIGINT; ours must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

SGLANG: dict[str, FlagValue] = {
    "dtype": "float32",
    "max-total-tokens": KV_TOKENS,
    "max-running-requests": 48,
    "enable-deterministic-inference": True,
    "skip-server-warmup": True,
}
SERVER_FLAGS = server_flags({"model-path": str(MODEL), **SGLANG})


@contextlib.contextmanager
def starting() -> Iterator["Start"]:
    """Yields what starts `seer-sgl rollout OPTIONS`, or another command with these options; drivers
    that a failed test leaves are killed.

    A server ends when its driver does.
    """
    with contextlib.ExitStack() as drivers:

        def begin(*options: str, command: Sequence[str] = (*SEER_SGL, "rollout")) -> "Driver":
            driver = drivers.enter_context(
                subprocess.Popen(
                    [*command, *options],
                    cwd=ROOT,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            drivers.callback(driver.kill)  # before its exit, which waits for it
            return driver

        yield begin


@pytest.fixture
def start() -> Iterator["Start"]:
    """Yields what starts a driver."""
    with starting() as begin:
        yield begin


@pytest.fixture(scope="session", autouse=True)
def counted(counted_starts: None) -> None:
    """Counts the engines that are started (tests/support/engine_starts.py)."""


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Rig"]:
    """Yields the running engines that tests share (tests/e2e/rig.py)."""
    from tests.e2e.rig import running_rig

    with running_rig(tmp_path_factory.mktemp("rig")) as running:
        yield running


@pytest.fixture(autouse=True)
def left_idle(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves the rig with running requests or other weights; empties its
    caches."""
    shared: Rig | None = request.getfixturevalue("rig") if "rig" in request.fixturenames else None
    yield
    if shared is not None:
        shared.reset()


@pytest.fixture(scope="session")
def engine_urls(rig: "Rig") -> list[str]:
    """Returns the URLs of a plain and a drafting engine, for drivers without a pool."""
    return rig.pair


def two_cores() -> list[set[int]]:
    """Returns a core for each of two servers; the same core twice if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return [{usable[i % len(usable)]} for i in range(2)]


def each_rank_on_a_core() -> dict[str, str]:
    """Returns the variable with which SGLang puts the two ranks of a server on cores."""
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(min(core)) for core in two_cores())}


def two_ranks_on_cores(servers: int) -> dict[str, Any]:
    """Returns the keys of `engines` that put the two ranks of each server on cores."""
    cores = sorted(set.union(*two_cores()))
    return {"cores": [cores] * servers, "environment": each_rank_on_a_core()}


def two_urls() -> list[str]:
    """Returns free URLs for two servers."""
    return [f"http://127.0.0.1:{free_port()}" for _ in range(2)]


@contextlib.contextmanager
def servers(
    urls: Sequence[str],
    flags: Sequence[Sequence[str]],
    logs: Path,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[set[int]] = (),
) -> Iterator[None]:
    """Starts engines at `urls`, each like a user in a separate terminal, and stops them at the end.
    `flags` and `cores`: per engine. An engine starts on all cores, and then runs on its own ones:
    bound from the first, two that share a core would start while another core has nothing to do."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for i, (url, own) in enumerate(zip(urls, flags, strict=True)):
            with (logs / f"e{i}.log").open("wb") as output:
                process = subprocess.Popen(
                    [*SEER_SGL, "engine", *own, "--port", url.rpartition(":")[2]],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
                    start_new_session=True,
                )
            processes.append(process)
        for i, (url, process) in enumerate(zip(urls, processes, strict=True)):
            wait_for(f"{url}/server_info", process, logs / f"e{i}.log")
        if cores:
            for process, allowed in zip(processes, cores, strict=True):
                bind(psutil.Process(process.pid), allowed)
        yield
    finally:
        running = [psutil.Process(each.pid) for each in processes if each.poll() is None]
        shared = shared_memory.mapped_by(each for root in running for each in family(root))
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shared_memory.remove(shared)


def bind(root: psutil.Process, cores: set[int]) -> None:
    """Binds the threads of a process and of its descendants to cores; later ones inherit that."""
    for process in family(root):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)


@contextlib.contextmanager
def draft_hubs(addresses: str, *options: str) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Runs `seer-sgl drafthub` at each host:port, separated by commas, with the environment's
    token; yields the processes and kills those that run at the end."""
    with contextlib.ExitStack() as stack:
        hubs = []
        for address in addresses.split(","):
            host, _, port = address.rpartition(":")
            command = [*SEER_SGL, "drafthub", "--host", host, "--port", port, *options]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == f"{READY} {address}\n".encode()
            hubs.append(process)
        yield hubs


def external(urls: list[str], **sections: dict[str, Any]) -> dict[str, Any]:
    """Returns a config for running servers."""
    return {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "external", "urls": urls},
        "scheduling": {"chunk_tokens": 64, **sections.pop("scheduling", {})},
        "sampling": {"max_response_len": 4000, **sections.pop("sampling", {})},
        "rollout": {"seed": 11, **sections.pop("rollout", {})},
    }
