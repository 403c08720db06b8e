"""`seer-sgl rollout` with its own servers: one that dies costs no sample, and none is left."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from seer_sgl.processes import shared_memory
from tests.e2e.conftest import MODEL, ROOT, SEER_SGL
from tests.e2e.drivers import END_S, WAIT_S, Driver, Start, finish, samples_in
from tests.support.processes import assert_nothing_left, owned_by

SMALL = [
    *("--config", "configs/cpu.yaml", "--set", "engines.count=1"),
    *("--set", "rollout.max_prompts=4", "--set", "rollout.n_samples_per_prompt=4"),
    *("--set", "sampling.max_response_len=800"),
]


def wait_for_samples(driver: Driver, out: Path, count: int) -> None:
    path, deadline = out / "samples.jsonl", time.monotonic() + WAIT_S
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.own_engines
def test_a_killed_engine_costs_no_sample_and_a_killed_driver_leaves_no_engine(
    start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    driver = start(*SMALL, "--out", str(out))
    wait_for_samples(driver, out, 3)
    (main,) = [p for p in owned_by(driver.pid) if p.ppid() == driver.pid]
    shared = shared_memory.mapped_by(owned_by(driver.pid))
    assert shared, "SGLang's own segment"
    os.killpg(main.pid, signal.SIGKILL)
    finish(driver)
    assert_nothing_left(driver.pid, END_S)
    assert not [name for name in shared if name.exists()]
    samples = samples_in(out)
    assert len({(s["group_id"], s["index"]) for s in samples}) == len(samples) == 16
    report = json.loads((out / "report.json").read_text())
    assert report["lost_chunks"] > 0

    driver = start(*SMALL, "--out", str(tmp_path / "again"))
    deadline = time.monotonic() + WAIT_S
    while not owned_by(driver.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.kill()
    driver.communicate()
    assert_nothing_left(driver.pid, END_S)


@pytest.mark.process
def test_seer_sgl_engine_refuses_what_cannot_work() -> None:
    def refused(*flags: str) -> str:
        done = subprocess.run(
            [*SEER_SGL, "engine", *flags], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 2
        return done.stderr.strip()

    assert refused() == "seer-sgl: engine: --model-path is missing"
    assert refused("--model-path", "/nowhere") == "seer-sgl: model.path: /nowhere does not exist"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        in_use = refused("--model-path", str(MODEL), "--port", port)
    assert in_use == f"seer-sgl: engine: --port: port {port}: Address already in use"
    assert "not a number" in refused("--model-path", str(MODEL), "--port", "x")
