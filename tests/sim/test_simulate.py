"""The command `seer-sgl simulate`: JSON results; every user error is one line with status 2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seer_sgl.cli import main
from seer_sgl.sim.variants import VARIANTS

KEYS = {  # the command's contract
    "workload",
    "policy",
    "wall_s",
    "tail_s",
    "throughput_tok_s",
    "idle_fraction",
    "preemptions",
    "migrations",
    "ratio_to_baseline",
    "ratio_to_oracle",
}
SMALL = ("--set", "engine.count=4", "--set", "engine.kv_tokens=60000")


class CommandResult(NamedTuple):
    """The exit status and output of a command."""

    status: int
    out: str
    err: str


Simulate = Callable[..., CommandResult]


@pytest.fixture
def simulate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Simulate:
    """Returns a function that runs the command in the folder."""
    monkeypatch.chdir(folder)

    def call(*options: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["seer-sgl", "simulate", *options])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return CommandResult(status, *capsys.readouterr())

    return call


def answer(simulate: Simulate, *options: str) -> dict[str, Any]:
    done = simulate(*options, "--json")
    assert (done.status, done.err) == (0, "")
    return dict(json.loads(done.out))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes a trace of 12 groups of 4, in the format of `seer-sgl rollout`, and invalid traces."""
    lines = [
        {
            "group_id": f"g{group}",
            "index": index,
            "prompt_ids": [group] * 50,
            "response_ids": [1, 2],
            "response_length": 20 + 37 * group * group + 11 * index,
        }
        for group in range(12)
        for index in range(4)
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "bare.jsonl").write_text('{"group_id": "a", "index": 0}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.yaml").write_text("engine:\n  count: 2\n  kv_toknes: 5\n")
    (tmp_path / "two.yaml").write_text("engine:\n  count: 2\n")
    return tmp_path


def test_one_policy_is_one_object_with_the_agreed_keys(simulate: Simulate) -> None:
    report = answer(simulate, "--trace", "samples.jsonl", "--policy", "seer", *SMALL)
    assert set(report) >= KEYS
    assert (report["workload"], report["policy"]) == ("samples.jsonl", "seer")
    tokens = sum(20 + 37 * group * group + 11 * index for group in range(12) for index in range(4))
    assert report["throughput_tok_s"] * report["wall_s"] == pytest.approx(tokens, rel=1e-3)
    assert 0 < report["tail_s"] < report["wall_s"]


def test_without_a_policy_all_are_compared(simulate: Simulate) -> None:
    report = answer(simulate, "--trace", "samples.jsonl", "--config", "two.yaml")
    rows = {row["policy"]: row for row in report["policies"]}
    assert list(rows) == list(VARIANTS)
    assert rows["group_round_robin"]["ratio_to_baseline"] == 1.0
    assert rows["oracle"]["ratio_to_oracle"] == 1.0
    for row in rows.values():
        ratio = row["throughput_tok_s"] / rows["group_round_robin"]["throughput_tok_s"]
        assert row["ratio_to_baseline"] == pytest.approx(ratio, rel=1e-3)
    table = simulate("--trace", "samples.jsonl", "--config", "two.yaml").out
    assert all(name in table for name in VARIANTS)


def test_a_sweep_shows_every_value_and_the_best(simulate: Simulate) -> None:
    sweep = "--trace", "samples.jsonl", "--sweep", "chunk_tokens=64,512", *SMALL
    report = answer(simulate, *sweep)
    assert report["key"] == "scheduling.chunk_tokens"
    assert [point["value"] for point in report["points"]] == [64, 512]
    for point in report["points"]:
        alone = answer(
            simulate,
            *("--trace", "samples.jsonl", "--policy", "seer", *SMALL),
            *("--set", f"scheduling.chunk_tokens={point['value']}"),
        )
        assert point["outcome"] == alone
    assert "scheduling.chunk_tokens" in simulate(*sweep).out


def pictures(*names: str) -> set[str]:
    return {f"{name}.{suffix}" for name in names for suffix in ("svg", "png")}


def test_out_has_json_and_pictures(simulate: Simulate, folder: Path) -> None:
    options = "--trace", "samples.jsonl", *SMALL, "--sweep", "engine.count=2,4"
    assert simulate(*options, "--out", "swept").status == 0
    assert simulate("--trace", "samples.jsonl", *SMALL, "--out", "out").status == 0
    drawn = {path.name for path in (folder / "out").iterdir()}
    assert drawn == {"report.json", *pictures("lanes", "tail", "ablation", "sweeps")}
    swept = {path.name for path in (folder / "swept").iterdir()}
    assert swept == {"report.json", *pictures("sweep")}
    report = json.loads((folder / "out" / "report.json").read_text())
    assert [row["policy"] for row in report["policies"]] == list(VARIANTS)
    assert all((folder / "out" / name).stat().st_size > 5000 for name in drawn - {"report.json"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "give exactly one of --workload and --trace"),
        (["--workload", "m", "--trace", "samples.jsonl"], "give exactly one of --workload and"),
        (["--workload", "nope"], "--workload nope: unknown; known: kimi-k2, moonlight, qwen2-vl-"),
        (["--workload", "moonlight", "--policy", "best"], "--policy best: unknown; known: group_"),
        (["--trace", "no.jsonl"], "--trace: no.jsonl: No such file or directory"),
        (["--trace", "empty.jsonl"], "--trace: empty.jsonl: no lengths"),
        (["--trace", "bare.jsonl"], "--trace: bare.jsonl:1: give exactly one of response_length"),
        (
            ["--trace", "samples.jsonl", "--sweep", "scheduling.policy=seer,oracle"],
            "every policy sets this key; compare policies with --policy",
        ),
        (
            ["--trace", "samples.jsonl", "--sweep", "chunk_tokens=2024-01-01"],
            "a value is not valid YAML, a date or nan",
        ),
        (
            ["--trace", "samples.jsonl", "--set", "paper.rows.seer.foo=1"],
            "foo: unknown key",
        ),
        (
            ["--trace", "samples.jsonl", "--set", "engine.kv_tokens=1000"],
            "--set engine.kv_tokens=1000: engine.kv_tokens: 1000 tokens in pages of 64 cannot",
        ),
        (
            ["--trace", "samples.jsonl", "--set", "workload.lengths.max=2000"],
            "workload.lengths.max: 2000 is less than the longest response in samples.jsonl (4530",
        ),
        (
            ["--workload", "moonlight", "--config", "bad.yaml"],
            "bad.yaml:3: engine.kv_toknes: unknown key; did you mean kv_tokens?",
        ),
        (
            ["--workload", "moonlight", "--set", "engine.count=0"],
            "--set engine.count=0: engine.count: expected int >= 1",
        ),
        (["--workload", "moonlight", "--sweep", "x=1"], "--sweep x=1: x: no such key"),
        (
            ["--workload", "moonlight", "--sweep", "enabled=true"],
            "--sweep enabled=true: enabled: ambiguous: pool",
        ),
        (["--workload", "moonlight", "--sweep", "chunk_tokens"], "expected key=value,value,..."),
        (["--workload", "moonlight", "--out", "samples.jsonl"], "--out samples.jsonl: File exists"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    simulate: Simulate, options: list[str], complaint: str
) -> None:
    done = simulate(*options)
    assert done.status == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
