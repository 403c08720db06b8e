"""Drivers that `seer-sgl rollout` started, their servers, and their samples."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seer_sgl.rollout.samples import encode_sample
from tests.e2e.compare import LOGPROB_TOLERANCE, Samples

WAIT_S = 400.0
END_S = 120.0  # of a driver's servers: one watches its parent only after the import of torch
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


def assert_same_samples(expected: Lines, found: Lines) -> None:
    """Asserts that the samples are those of an undisturbed rollout, each once."""
    again = {(each["group_id"], each["index"]): each for each in found}
    assert len(again) == len(found) == len(expected)
    for sample in expected:
        other = again[sample["group_id"], sample["index"]]
        for name in ("response_ids", "text", "finish_reason", "matched"):
            assert other[name] == sample[name]
        pairs = zip(other["rollout_log_probs"], sample["rollout_log_probs"], strict=True)
        assert max(abs(a - b) for a, b in pairs) < LOGPROB_TOLERANCE
