"""`seer-sgl rollout` with its own servers: results, no lost samples and no leftover processes."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from seer_sgl import shared_memory
from seer_sgl.processes import PARENT_PID
from tests.docs.printed import not_printed
from tests.e2e.conftest import HELD_OUT, MODEL, ROOT, SEER_SGL
from tests.e2e.drivers import Driver, Start, samples_in

pytestmark = pytest.mark.own_engines

WAIT_S = 400.0
# Lines of the pages that a rollout may not print: where Mooncake does not load, or in under 5 s.
SOMETIMES = {
    "KV pool: Mooncake master at 127.0.0.1:P, 1 x 256mb",
    "e0 K running, Q queued, KV U%   e1 ...",
}
SMALL = [
    "--config",
    "configs/cpu.yaml",
    "--set",
    "rollout.max_prompts=4",
    "--set",
    "sampling.max_response_len=1500",
]


COMPARED = [
    *("--config", "configs/cpu-seer.yaml", "--compare"),
    *("--set", "rollout.max_prompts=2", "--set", "rollout.n_samples_per_prompt=3"),
    *("--set", "sampling.max_response_len=600"),
]


def into(out: Path) -> tuple[str, str]:
    return "--out", str(out)


def servers_of(driver: int) -> list[psutil.Process]:
    """Returns the server processes of a driver, by the PARENT_PID in their environment."""
    servers = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(PARENT_PID) == str(driver):
                servers.append(process)
        except psutil.Error:
            continue
    return servers


def assert_nothing_left(driver: int) -> None:
    deadline = time.monotonic() + 120  # a server watches its parent only after the import of torch
    while (left := servers_of(driver)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def wait_for_samples(driver: Driver, out: Path, count: int) -> None:
    path, deadline = out / "samples.jsonl", time.monotonic() + WAIT_S
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.smoke
def test_a_rollout_writes_samples_report_and_timeline(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start(*SMALL, *into(out))
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, output
    report = json.loads((out / "report.json").read_text())
    samples = samples_in(out)
    assert report["groups"] == 4
    assert len(samples) == report["samples"] == 32
    assert report["response_tokens"] == sum(sample["response_length"] for sample in samples)
    assert report["retractions"] == 0
    assert len(report["engines"]) == 2
    assert all(engine["plugin"] for engine in report["engines"])
    first = json.loads(HELD_OUT.read_text().splitlines()[0])
    for sample in samples:
        length = sample["response_length"]
        assert length == len(sample["response_ids"]) == len(sample["rollout_log_probs"])
        assert sample["weight_spans"] == [{"version": "default", "tokens": length}]
        assert sample["text"]
        if sample["group_id"] == first["id"]:
            assert sample["metadata"] == first["metadata"]
    assert sorted((s["group_id"], s["index"]) for s in samples) == sorted(
        (group, index) for group in {s["group_id"] for s in samples} for index in range(8)
    )
    assert (out / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / "engines" / "e1.log").stat().st_size > 0
    assert "groups 4/4" in output, "plain progress lines when the output is not a terminal"
    assert "\x1b[" not in output
    assert_nothing_left(driver.pid)


def test_compared_with_plain_sglang_all_samples_are_identical(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start(*COMPARED, *into(out))
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, output
    comparison = json.loads((out / "comparison.json").read_text())
    assert comparison["identical"] == comparison["samples"] == len(samples_in(out)) == 6
    report = json.loads((out / "report.json").read_text())
    assert comparison["seed"] == report["seed"]
    for name in ("seer_sgl", "plain"):
        assert comparison[name]["samples"] == 6
        assert comparison[name]["response_tokens"] == report["response_tokens"]
    assert comparison["seer_sgl"]["accept_length"] == report["accept_length"] > 1
    assert comparison["plain"]["accept_length"] is None
    assert comparison["plain"]["chunks"] == 6, "undivided"
    assert "as fast, all 6 samples identical" in output
    log = [line.replace(str(out), "out/first") for line in output.splitlines()]
    assert log[-1].startswith("next: ")
    missing = set(not_printed(log)) - SOMETIMES
    assert not missing, "getting-started.md and README.md show these lines"
    assert_nothing_left(driver.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_had_finished_and_leaves_nothing_running(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    long = ("--set", "rollout.max_prompts=32", "--set", "sampling.max_response_len=7000")
    driver = start(*SMALL, *into(out), *long)
    wait_for_samples(driver, out, 5)
    driver.send_signal(number)
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 130, output
    assert output.splitlines()[-1] == "seer-sgl: interrupted"
    assert "Traceback" not in output
    samples = samples_in(out)
    report = json.loads((out / "report.json").read_text())
    assert 5 <= len(samples) == report["samples"] < 32 * 8
    assert report["unfinished_groups"] > 0
    assert (out / "timeline.png").exists()
    assert_nothing_left(driver.pid)


def test_a_killed_engine_costs_no_sample_and_a_killed_driver_leaves_no_engine(
    start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    groups = ("--set", "rollout.max_prompts=8", "--set", "rollout.n_samples_per_prompt=4")
    driver = start(*SMALL, *into(out), *groups)
    wait_for_samples(driver, out, 3)
    mains = [p for p in servers_of(driver.pid) if p.ppid() == driver.pid]
    assert len(mains) == 2
    shared = shared_memory.mapped_by(servers_of(driver.pid))
    assert len(shared) >= 2, "SGLang's own segment of each engine"
    os.killpg(mains[1].pid, signal.SIGKILL)
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, output
    assert not [name for name in shared if name.exists()]
    samples = samples_in(out)
    assert len({(s["group_id"], s["index"]) for s in samples}) == len(samples) == 32
    report = json.loads((out / "report.json").read_text())
    assert report["lost_chunks"] > 0

    driver = start(*SMALL, *into(tmp_path / "again"))
    deadline = time.monotonic() + WAIT_S
    while not servers_of(driver.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.kill()
    driver.communicate()
    assert_nothing_left(driver.pid)


def test_an_engine_that_dies_at_start_is_explained_by_its_log(start: Start, tmp_path: Path) -> None:
    driver = start(
        *SMALL, *into(tmp_path / "out"), "--set", "engines.sglang.attention-backend=nonsense"
    )
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 1
    last = output[output.index("seer-sgl: ") :]
    assert "ended with status" in last.splitlines()[0]
    assert "nonsense" in last, "the end of the engine's own log"
    assert "Traceback (most recent call last):\n  File" not in last
    assert_nothing_left(driver.pid)


def test_seer_sgl_engine_refuses_what_cannot_work(tmp_path: Path) -> None:
    def refused(*flags: str) -> str:
        done = subprocess.run(
            [*SEER_SGL, "engine", *flags], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 2
        return done.stderr.strip()

    assert refused() == "seer-sgl: engine: --model-path is missing"
    assert refused("--model-path", "/nowhere") == "seer-sgl: model.path: /nowhere does not exist"
    empty = refused("--model-path", str(tmp_path))
    assert empty == f"seer-sgl: model.path: {tmp_path} has no config.json"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        in_use = refused("--model-path", str(MODEL), "--port", port)
    assert in_use == f"seer-sgl: engine: --port: port {port}: Address already in use"
    assert "not a number" in refused("--model-path", str(MODEL), "--port", "x")
