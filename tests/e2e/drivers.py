"""Drivers that `seer-sgl rollout` started, their servers, and their samples."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from seer_sgl.processes.child import PARENT_PID
from seer_sgl.rollout.samples import encode_sample
from tests.e2e.compare import LOGPROB_TOLERANCE, Samples

WAIT_S = 400.0
Driver = subprocess.Popen[str]
Start = Callable[..., Driver]
Lines = Sequence[dict[str, Any]]  # of samples.jsonl


def finish(driver: Driver) -> str:
    """Waits until a driver has ended well; returns what it logged."""
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, output
    return output


def samples_in(out: Path) -> list[dict[str, Any]]:
    """Returns the samples in OUT, once its driver has ended: each line must be whole."""
    path = out / "samples.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def lines_of(samples: Samples) -> list[dict[str, Any]]:
    """Returns samples as their lines in samples.jsonl."""
    return [json.loads(encode_sample(sample)) for sample in samples.values()]


def assert_same_samples(calm: Lines, found: Lines) -> None:
    """Asserts that the samples are those of a calm rollout, each once."""
    again = {(each["group_id"], each["index"]): each for each in found}
    assert len(again) == len(found) == len(calm)
    for sample in calm:
        other = again[sample["group_id"], sample["index"]]
        for name in ("response_ids", "text", "finish_reason", "matched"):
            assert other[name] == sample[name]
        pairs = zip(other["rollout_log_probs"], sample["rollout_log_probs"], strict=True)
        assert max(abs(a - b) for a, b in pairs) < LOGPROB_TOLERANCE


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
    """Waits until all servers of a driver have ended."""
    deadline = time.monotonic() + 120  # a server watches its parent only after the import of torch
    while (left := servers_of(driver)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
