"""The scripts of examples/ run as their docstrings say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HELD_OUT, MODEL, ROOT
from .rig import Rig


def run(*module_and_arguments: str) -> list[str]:
    """Runs a module and returns the lines that it prints."""
    command = [sys.executable, "-m", *module_and_arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


@pytest.mark.shared_engines
def test_a_toy_rl_loop_samples_from_new_weights_at_every_step(rig: Rig) -> None:
    fleet = rig.fleet()
    changes = [f"{name}={json.dumps(fleet[name])}" for name in ("engines", "kv_pool", "draft")]
    with rig.weights_given_back():
        lines = run(
            *("tests.e2e.ready", json.dumps(changes), "examples.rl_loop"),
            *("--steps", "2", "--prompts", "3"),
        )
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1"]
    for line in lines:
        found = re.search(r"reward ([0-9.]+), mean length ([0-9]+)", line)
        assert found is not None
        assert 0 < float(found[1]) <= 1
        assert int(found[2]) > 0


@pytest.mark.shared_engines
def test_servers_that_run_already_answer(engine_urls: list[str]) -> None:
    options = ("--tokenizer", str(MODEL), "--prompts", str(HELD_OUT))
    lines = run("examples.running_servers", *engine_urls, *options)
    assert len(lines) == 4
    assert lines[-1].startswith("12 samples, ")


@pytest.mark.process
def test_a_trace_of_a_rollout_is_simulated(tmp_path: Path) -> None:
    trace = tmp_path / "samples.jsonl"
    line = '{{"group_id": "g{}", "prompt_ids": [1, 2, 3], "lengths": [{}, {}]}}\n'
    trace.write_text("".join(line.format(i, 100 + 40 * i, 90 + 45 * i) for i in range(20)))
    lines = run("examples.simulate_trace", str(trace), "--engines", "2")
    assert [line.split()[0] for line in lines[:4]] == [
        "group_round_robin",
        "request_round_robin",
        "fcfs",
        "seer",
    ]
    assert len(lines) == 7
