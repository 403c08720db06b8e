"""The command `seer-sgl simulate`: JSON results; every user error is one line with status 2."""

import json
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.cli import main
from seer_sgl.sim.variants import VARIANTS
from tests.sim.commands import SMALL, Command, assert_refused, command, write_trace

SHORT = ("workload.groups=6", "workload.lengths.mean=900", "workload.lengths.max=4000")
FEW = tuple(option for value in SHORT for option in ("--set", value))
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


@pytest.fixture
def simulate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Returns a function that runs the command in the folder."""
    monkeypatch.chdir(folder)
    return command(main, ["seer-sgl", "simulate"], monkeypatch, capsys)


def answer(simulate: Command, *options: str) -> dict[str, Any]:
    done = simulate(*options, "--json")
    assert (done.status, done.err) == (0, "")
    return dict(json.loads(done.out))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes a trace of 12 groups of 4, in the format of `seer-sgl rollout`, and invalid traces."""
    write_trace(tmp_path / "samples.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.yaml").write_text("engine:\n  count: 2\n  kv_toknes: 5\n")
    (tmp_path / "two.yaml").write_text("engine:\n  count: 2\n")
    return tmp_path


def test_one_policy_is_one_object_with_the_agreed_keys(simulate: Command) -> None:
    report = answer(simulate, "--trace", "samples.jsonl", "--policy", "seer", *SMALL)
    assert set(report) >= KEYS
    assert (report["workload"], report["policy"]) == ("samples.jsonl", "seer")
    tokens = sum(20 + 37 * group * group + 11 * index for group in range(12) for index in range(4))
    assert report["throughput_tok_s"] * report["wall_s"] == pytest.approx(tokens, rel=1e-3)
    assert 0 < report["tail_s"] < report["wall_s"]


def test_without_a_policy_all_are_compared(simulate: Command) -> None:
    options = "--workload", "moonlight", *FEW, "--config", "two.yaml"
    report = answer(simulate, *options)
    rows = {row["policy"]: row for row in report["policies"]}
    assert list(rows) == list(VARIANTS)
    assert rows["group_round_robin"]["ratio_to_baseline"] == 1.0
    assert rows["oracle"]["ratio_to_oracle"] == 1.0
    for row in rows.values():
        ratio = row["throughput_tok_s"] / rows["group_round_robin"]["throughput_tok_s"]
        assert row["ratio_to_baseline"] == pytest.approx(ratio, rel=1e-3)
    table = simulate(*options).out
    assert all(name in table for name in VARIANTS)


SLOW = ("engine.overhead_ms=1000000", "workload.lengths.max=20")
FAST = (
    *("engine.overhead_ms=0", "engine.row_overhead_us=0", "engine.weights_gb=1e-9"),
    *("engine.active_params_b=1e-6", "engine.prefill_tok_s=1e10", "engine.kv_bytes_per_token=1"),
)


@pytest.mark.parametrize("values", [SLOW, FAST], ids=["slow", "fast"])
def test_ratios_are_of_times_that_the_figures_round_to_zero(
    values: tuple[str, ...], simulate: Command, folder: Path
) -> None:
    (folder / "few.jsonl").write_text('{"group_id": "a", "lengths": [20, 5], "prompt_tokens": 9}\n')
    overrides = (option for value in values for option in ("--set", value))
    row = answer(simulate, "--trace", "few.jsonl", "--policy", "oracle", *overrides)
    assert 0.0 in (row["throughput_tok_s"], row["wall_s"])
    assert row["ratio_to_oracle"] == 1.0
    assert row["ratio_to_baseline"] == pytest.approx(1.0, rel=0.1)
    assert 0 < row["share_of_bound"] <= 1


def test_a_sweep_shows_every_value_and_the_best(simulate: Command) -> None:
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


NAMED = ("--workload", "moonlight", "--policy", "fcfs", *SMALL, *FEW)


def test_draws_give_the_mean_and_the_range_of_each_figure(simulate: Command) -> None:
    made = answer(simulate, *NAMED, "--draws", "3", "--log-level", "warning")
    assert made["seeds"] == [1, 2, 3]
    alone = [answer(simulate, *NAMED, "--set", f"workload.lengths.seed={i}") for i in (1, 2, 3)]
    (row,) = made["policies"]
    for name in ("ratio_to_baseline", "ratio_to_oracle", "share_of_bound"):
        values = [one[name] for one in alone]
        assert len(set(values)) == 3
        assert (row[name]["least"], row[name]["most"]) == (min(values), max(values))
        assert row[name]["mean"] == pytest.approx(sum(values) / 3, abs=1e-3)
    result = simulate(*NAMED, "--draws", "2")
    assert row["policy"] in result.out
    values = [one["ratio_to_baseline"] for one in alone[:2]]
    first, second = (
        f"draw {n} of 2, seed {n}, x baseline: fcfs {x}" for n, x in enumerate(values, 1)
    )
    assert result.err.index(first) < result.err.index(second)


def pictures(*names: str) -> set[str]:
    return {f"{name}.{suffix}" for name in names for suffix in ("svg", "png")}


@pytest.mark.process
def test_out_has_json_and_pictures(simulate: Command, folder: Path) -> None:
    options = "--trace", "samples.jsonl", *SMALL, "--sweep", "engine.count=2,4"
    assert simulate(*options, "--out", "swept").status == 0
    assert simulate("--workload", "moonlight", *FEW, *SMALL, "--out", "out").status == 0
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
        (
            ["--trace", "samples.jsonl"],
            "--trace: give --policy or --sweep; `seer-sgl what-if FILE`",
        ),
        (["--trace", "empty.jsonl"], "--trace: empty.jsonl: no lengths"),
        (
            ["--trace", "samples.jsonl", "--sweep", "scheduling.policy=seer,oracle"],
            "every policy sets this key; compare policies with --policy",
        ),
        (
            ["--trace", "samples.jsonl", "--sweep", "chunk_tokens=2024-01-01"],
            "a value is not valid YAML, a date or nan",
        ),
        (
            ["--trace", "samples.jsonl", "--set", "speculation.draft_ms=1"],
            "speculation.draft_ms: removed; speculation.step_cpu_ms is the time of a",
        ),
        (["--trace", "samples.jsonl", "--set", "speculation.drafts=0"], "speculation.drafts: "),
        (["--trace", "samples.jsonl", "--set", "speculation.drafts=65"], "speculation.drafts: "),
        (
            ["--trace", "samples.jsonl", "--set", "speculation.drafts=1"],
            "speculation.accept_length: must be between 1 and 2",
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
        (["--workload", "moonlight", "--draws", "1"], "--draws 1: expected at least 2"),
        (["--trace", "samples.jsonl", "--draws", "2"], "--draws: the lengths of --trace"),
        (
            ["--workload", "moonlight", "--draws", "2", "--sweep", "chunk_tokens=64"],
            "--draws: not together",
        ),
        (["--workload", "moonlight", "--out", "samples.jsonl"], "--out samples.jsonl: File exists"),
        (["--workload", "moonlight", "--out", "."], "--out .: the folder has a rollout; use "),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    simulate: Command, options: list[str], complaint: str
) -> None:
    assert_refused(simulate(*options), complaint)
