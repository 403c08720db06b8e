"""`seer-sgl bench` and `bench.full` against a real server that already runs, like a user's fleet.

On the plain engine of the rig: plain arms refuse drafting ones.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.rig import Rig

pytestmark = pytest.mark.shared_engines

ARMS = ["group_round_robin", "group_least_loaded", "request_round_robin", "divided"]
FULL = ("bench.full",)
PROMPT_TOKENS = 6  # the shortest of the reasoner's


def bench(
    out: Path, *options: str, program: Sequence[str] = ("seer_sgl", "bench")
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *program, "--out", str(out), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_every_arm_has_the_same_samples(rig: Rig, tmp_path: Path) -> None:
    options = [
        *("--engines", rig.plain, "--rounds", "1", "--arms", ",".join([*ARMS, "seer"])),
        *("--router", "--sim", "bench/full/cpu.yaml"),
        *("--set", "kv_pool.backend=none", "--set", "draft.scope=none"),
        *("--set", "bench.seeds=[2]", "--set", "rollout.max_prompts=3"),
        *("--set", "sampling.max_response_len=200"),
        *("--set", "rollout.n_samples_per_prompt=4", "--set", "scheduling.chunk_tokens=64"),
    ]
    ran = bench(tmp_path / "out", *options, program=FULL)
    assert ran.returncode == 0, ran.stderr
    assert "skipping arm seer: kv_pool.backend is none" in ran.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(report["arms"]) == [ARMS[0], "router", *ARMS[1:]]
    for name, arm in report["arms"].items():
        assert arm["identical_share"] == 1.0, name
        assert arm["rounds"] == 1
        assert arm["throughput_tok_s"] > 0
        assert arm["forward_steps"] > 0, "engines with the plugin report it"
        assert arm["prefilled_tokens"] >= 3 * PROMPT_TOKENS
    for row in report["rounds"]:
        # All prefilled tokens, and the part of continuations without the last input token.
        assert row["prefilled_tokens"] > row["recomputed_tokens"]
    assert report["arms"]["group_round_robin"]["speedup"] == 1.0
    assert report["arms"]["divided"]["chunks"] > report["arms"]["group_round_robin"]["chunks"] == 12
    assert list(report["predicted"]["arms"]) == ARMS
    assert report["environment"]["packages"]["sglang"] == version("sglang")
    lines = (tmp_path / "out" / "reports.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert [one["chunks"] for one in reports] == [row["chunks"] for row in report["rounds"]]
    for name in ("report.md", "arms.png", "rounds.jsonl"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert "| divided |" in (tmp_path / "out" / "report.md").read_text()


def test_lengths_of_a_trace_are_imposed(rig: Rig, tmp_path: Path) -> None:
    prompt = [1, 8, 4, 5, 6, 9, 4, 5, 6, 10, 11]
    trace = tmp_path / "trace.jsonl"
    lengths = [[20, 150], [20, 151], [20, 152]]
    with trace.open("w") as file:
        for i, pair in enumerate(lengths):
            group = {"group_id": f"g{i}", "prompt_ids": [*prompt, 4 + i], "lengths": pair}
            file.write(json.dumps(group) + "\n")
    ran = bench(
        tmp_path / "out",
        *("--engines", rig.plain, "--rounds", "1", "--workload", str(trace)),
        *("--arms", "group_least_loaded,divided"),
        *("--set", "kv_pool.backend=none", "--set", "draft.scope=none"),
        *("--set", "scheduling.chunk_tokens=64"),
    )
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["rounds"]
    tokens = sum(map(sum, lengths))
    assert [row["response_tokens"] for row in rows] == [tokens, tokens]
    assert [row["identical_share"] for row in rows] == [1.0, 1.0]
    for name in ("report.md", "rounds.jsonl"):
        assert (tmp_path / "out" / name).stat().st_size > 0
